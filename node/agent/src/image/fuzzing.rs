//! Ways in for the fuzz targets of `fuzz/`: images, which tenants make.
//!
//! What must stay true: a function here calls what a node calls to prepare an image, and decides nothing.

use super::layout::LayoutImage;
use super::unpack::Unpacking;
use super::{Bounds, ImageError};
use crate::task_folder::record::OfImage;
use std::io::Read;
use std::path::Path;

/// Unpacks one layer, which is not compressed, into a folder that is there.
///
/// # Errors
/// [`ImageError`].
pub fn unpack(layer: impl Read, into: &Path, bounds: Bounds) -> Result<u64, ImageError> {
    let mut unpacking = Unpacking::into(into, bounds)?;
    unpacking.layer(layer)?;
    Ok(unpacking.bytes())
}

/// Reads the image of a layout and unpacks it into a folder that is there.
///
/// # Errors
/// [`ImageError`].
pub fn layout(folder: &Path, tag: Option<&str>, into: &Path, bounds: Bounds) -> Result<OfImage, ImageError> {
    let opened = std::fs::File::open(folder).map_err(|error| ImageError::disk("opening the layout", error))?;
    let image = LayoutImage::find(opened.into(), tag)?;
    image.unpack(into, bounds)?;
    image.config()
}
