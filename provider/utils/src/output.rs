//! What the tools print, on a standard output and a standard error that may be full or closed.

use clap::Parser;
use std::fmt::Display;
use std::io::{ErrorKind, Write};
use std::process::{ExitCode, exit};

/// The command line. Ends the program if that asks for help, or is wrong.
pub(crate) fn parse<C: Parser>() -> C {
    C::try_parse().unwrap_or_else(|error| {
        if error.use_stderr() {
            let _ = write!(std::io::stderr(), "{}", error.render());
            exit(2);
        }
        exit(i32::from(!print(error.render())))
    })
}

/// Prints this. False if it cannot be written, which is reported unless nobody reads any more.
pub(crate) fn print(text: impl Display) -> bool {
    let mut out = std::io::stdout();
    match write!(out, "{text}").and_then(|()| out.flush()) {
        Ok(()) => true,
        Err(error) => {
            if error.kind() != ErrorKind::BrokenPipe {
                complain(format_args!("cannot write to standard output: {error}"));
            }
            false
        }
    }
}

/// Reports an error, with the name of the program.
pub(crate) fn complain(what: impl Display) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "{}: {what}", env!("CARGO_BIN_NAME"));
    ExitCode::FAILURE
}
