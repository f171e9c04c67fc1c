//! What is received, held against its bounds before it is decoded.
//!
//! Decoding makes a list of as many entries as a message names, and an empty text takes two bytes on the wire and twenty-four in
//! memory: eight megabytes of them are four million. So a message that a client, a shard or an agent sends is first read over as bytes,
//! by the descriptors, and refused when a field passes its row of [`muster_model::validate::table`], when the whole would take too much
//! memory, or when it is no message at all. What must stay true: nothing is kept while reading over; the refusal names the field's path
//! and the bound; replies, and what control nodes send each other, are not judged here.

mod scan;
mod schema;

pub use schema::{FieldSchema, Kind, Schema, schema};

use muster_model::FieldError;
use prost::{Message, Name};
use std::marker::PhantomData;
use tonic::Status;
use tonic::codec::{BufferSettings, DecodeBuf, Decoder};
use tonic_prost::{ProstCodec, ProstEncoder};

/// Bytes that one message may take once it is decoded: the largest gang with its cards takes half of it.
pub const MEMORY_BYTES_MAX: usize = 64 << 20;

/// Holds an encoded message of the type `name` against its bounds. Types that nobody sends to a control node pass.
///
/// # Errors
/// The first field that is too large or cannot be read.
pub fn check(name: &str, bytes: &[u8]) -> Result<(), FieldError> {
    match schema().root(name) {
        Some(root) => scan::check(schema(), root, bytes),
        None => Ok(()),
    }
}

/// Protobuf as everywhere, with [`check`] before decoding.
#[derive(Debug, Clone)]
pub struct Codec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for Codec<T, U> {
    fn default() -> Self {
        Codec(PhantomData)
    }
}

impl<T, U> tonic::codec::Codec for Codec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Name + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = BoundedDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<T, U>::raw_encoder(BufferSettings::default())
    }

    fn decoder(&mut self) -> Self::Decoder {
        BoundedDecoder(PhantomData)
    }
}

/// Decodes what [`check`] lets pass.
#[derive(Debug, Clone)]
pub struct BoundedDecoder<U>(PhantomData<U>);

impl<U: Message + Name + Default> Decoder for BoundedDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        let bytes = bytes::Buf::copy_to_bytes(buffer, bytes::Buf::remaining(buffer));
        let sent_to_a_server = schema().root(U::NAME).is_some();
        if sent_to_a_server {
            check(U::NAME, &bytes).map_err(crate::status::invalid_field)?;
        }
        U::decode(bytes).map(Some).map_err(|error| match sent_to_a_server {
            true => Status::invalid_argument(format!("the message is not a {}: {error}", U::NAME)),
            false => Status::internal(format!("the answer is not a {}: {error}", U::NAME)),
        })
    }
}
