//! The part of bindgen 0.59's `Builder` that rdma-sys 0.3.0 calls, carried out by bindgen 0.72.
//!
//! bindgen 0.59 names anonymous C items in a way that panics with libclang 16 and newer
//! (`... is not a valid Ident`). This crate takes its place through `[patch.crates-io]`, so that
//! rdma-sys builds unchanged with every libclang that bindgen 0.72 supports.

pub use bindgen_now::{BindgenError, Bindings};

/// Settings for one run of bindgen, with the names of bindgen 0.59.
#[derive(Debug, Clone, Default)]
pub struct Builder(bindgen_now::Builder);

/// Forwards methods of the same name and argument to bindgen 0.72.
macro_rules! forward {
    ($($name:ident($($arg:ident: $ty:ty)?)),* $(,)?) => {$(
        #[doc = concat!("As `Builder::", stringify!($name), "` of bindgen.")]
        #[must_use]
        pub fn $name(self $(, $arg: $ty)?) -> Self {
            Self(self.0.$name($($arg)?))
        }
    )*};
}

impl Builder {
    forward! {
        allowlist_function(pattern: &str),
        allowlist_type(pattern: &str),
        bitfield_enum(pattern: &str),
        blocklist_type(pattern: &str),
        constified_enum_module(pattern: &str),
        derive_copy(on: bool),
        derive_debug(on: bool),
        derive_default(on: bool),
        disable_untagged_union(),
        generate_comments(on: bool),
        header(path: &str),
        opaque_type(pattern: &str),
        prepend_enum_name(on: bool),
        rustified_enum(pattern: &str),
        size_t_is_usize(on: bool),
    }

    /// As `Builder::clang_args` of bindgen.
    #[must_use]
    pub fn clang_args<I>(self, args: I) -> Self
    where
        I: IntoIterator,
        I::Item: AsRef<str>,
    {
        Self(self.0.clang_args(args.into_iter().map(|arg| arg.as_ref().to_owned())))
    }

    /// bindgen 0.59 ran `rustfmt`; nobody reads this file, so it stays unformatted.
    #[must_use]
    pub fn rustfmt_bindings(self, _on: bool) -> Self {
        self
    }

    /// Reads the headers and makes the bindings.
    ///
    /// # Errors
    /// When libclang cannot read a header; the text says which.
    pub fn generate(self) -> Result<Bindings, BindgenError> {
        self.0.generate()
    }
}
