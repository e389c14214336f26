//! Which build of refrain this is.

use std::sync::LazyLock;

/// The version, and the commit that `cargo xtask` has built, in parentheses. A build by cargo alone does
/// not know its commit, and needs no git.
static VERSION: LazyLock<String> = LazyLock::new(|| match option_env!("REFRAIN_COMMIT") {
    Some(commit) => format!("{} ({commit})", env!("CARGO_PKG_VERSION")),
    None => env!("CARGO_PKG_VERSION").to_owned(),
});

/// The version of this build.
pub fn version() -> &'static str {
    &VERSION
}
