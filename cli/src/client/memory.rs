//! Which endpoint answered the last command, kept between commands so that a dead one is not asked first each time.
//!
//! What must stay true: it is a hint; a file that is missing, unreadable or about other endpoints means nothing was kept, and nothing
//! here ever fails a command.

use std::path::PathBuf;

/// Where it is kept.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory(Option<PathBuf>);

impl Memory {
    /// In the user's cache folder; nowhere when there is none.
    pub(super) fn of_this_user() -> Self {
        let of = |name: &str| std::env::var_os(name).filter(|dir| !dir.is_empty()).map(PathBuf::from);
        let base = of("XDG_CACHE_HOME").or_else(|| Some(of("HOME")?.join(".cache")));
        Memory(base.map(|base| base.join("muster/endpoint")))
    }

    /// The one of `endpoints` that answered last.
    pub(super) fn recall(&self, endpoints: &[&str]) -> Option<usize> {
        let text = std::fs::read_to_string(self.0.as_ref()?).ok()?;
        let (among, good) = text.trim_end().split_once('\n')?;
        if among != endpoints.join(",") {
            return None;
        }
        endpoints.iter().position(|endpoint| *endpoint == good)
    }

    /// Keeps the one that answered.
    pub(super) fn keep(&self, endpoints: &[&str], good: usize) {
        let (Some(path), Some(good)) = (&self.0, endpoints.get(good)) else { return };
        // Written whole beside it and moved: another command may read it now.
        let draft = path.with_extension(std::process::id().to_string());
        let text = format!("{}\n{good}\n", endpoints.join(","));
        let folder = path.parent().map_or(Ok(()), std::fs::create_dir_all);
        let _ = folder.and_then(|()| std::fs::write(&draft, text)).and_then(|()| std::fs::rename(&draft, path));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_endpoints_are_recalled() {
        let folder = tempfile::tempdir().expect("a folder");
        let memory = Memory(Some(folder.path().join("muster/endpoint")));
        assert_eq!(memory.recall(&["a:1", "b:2"]), None);
        memory.keep(&["a:1", "b:2"], 1);
        assert_eq!(memory.recall(&["a:1", "b:2"]), Some(1));
        assert_eq!(memory.recall(&["b:2", "c:3"]), None);
        std::fs::write(folder.path().join("muster/endpoint"), "a:1,b:2\nc:3\n").expect("written");
        assert_eq!(memory.recall(&["a:1", "b:2"]), None);
        Memory(None).keep(&["a:1"], 0);
        assert_eq!(std::fs::read_dir(folder.path().join("muster")).expect("a folder").count(), 1, "no draft is left");
    }
}
