//! The file that holds a module's symbols.

use object::read::ReadCache;
use object::{Object, ObjectSection, ObjectSegment};
use refrain_trace::Module;
use std::fs::File;
use std::path::{Path, PathBuf};

/// The best file for a module: its own if it has debug information, else a debug file of the
/// same build, else its own with just the symbol table, else none.
pub(super) fn of_module(module: &Module) -> Option<PathBuf> {
    let own = PathBuf::from(&module.path);
    let facts = examine(&own).filter(|facts| facts.build_id == module.build_id);
    if facts.as_ref().is_some_and(|facts| facts.has_debug_info) {
        return Some(own);
    }
    let debug = module.build_id.as_deref().and_then(debug_file);
    debug.or_else(|| facts.map(|_| own))
}

/// A separate debug file with this build id, as distributions install and debuginfod caches them.
fn debug_file(build_id: &str) -> Option<PathBuf> {
    if build_id.len() < 3 || !build_id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let (head, tail) = build_id.split_at(2);
    let installed = PathBuf::from(format!("/usr/lib/debug/.build-id/{head}/{tail}.debug"));
    let cache = std::env::var_os("DEBUGINFOD_CACHE_PATH").map(PathBuf::from).or_else(|| {
        let home = PathBuf::from(std::env::var_os("HOME")?);
        Some(home.join(".cache/debuginfod_client"))
    });
    let cached = cache.map(|cache| cache.join(build_id).join("debuginfo"));
    [Some(installed), cached]
        .into_iter()
        .flatten()
        .find(|path| examine(path).is_some_and(|facts| facts.build_id.as_deref() == Some(build_id)))
}

/// The build id of a file in hexadecimal digits, if it has one; `None` if its notes cannot be read.
pub(super) fn build_id<'data>(elf: &impl Object<'data>) -> Option<Option<String>> {
    let id = elf.build_id().ok()?;
    Some(id.map(|id| id.iter().map(|byte| format!("{byte:02x}")).collect()))
}

/// What `read` makes of the file of a module, which is the recorded one, and of where its addresses lie in
/// the guest. `None` if the file is another one. A trace is untrusted and may name any path, so nothing
/// but regular files is opened.
pub(super) fn of_recorded<T>(
    module: &Module,
    read: impl FnOnce(&object::File<'_, &ReadCache<File>>, &dyn Fn(u64) -> u64) -> Option<T>,
) -> Option<T> {
    if !std::fs::metadata(&module.path).ok()?.is_file() {
        return None;
    }
    let data = ReadCache::new(File::open(&module.path).ok()?);
    let elf = object::File::parse(&data).ok()?;
    if build_id(&elf)? != module.build_id {
        return None;
    }
    let lowest = elf.segments().map(|segment| segment.address()).min()?;
    let place = |at: u64| at.wrapping_sub(lowest & !0xfff).wrapping_add(module.start);
    read(&elf, &place)
}

struct Facts {
    build_id: Option<String>,
    has_debug_info: bool,
}

/// What an ELF file says of itself; `None` if it is none. A trace is untrusted and may name any
/// path, so nothing but regular files is opened.
fn examine(path: &Path) -> Option<Facts> {
    if !std::fs::metadata(path).ok()?.is_file() {
        return None;
    }
    let data = ReadCache::new(File::open(path).ok()?);
    let elf = object::File::parse(&data).ok()?;
    let build_id = build_id(&elf)?;
    let has_debug_info =
        elf.section_by_name(".debug_info").is_some_and(|section| section.size() > 0);
    Some(Facts { build_id, has_debug_info })
}
