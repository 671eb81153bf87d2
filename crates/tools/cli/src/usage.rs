//! What is wrong with a command line, in words that help: the standard library's own say what a parser met, not what
//! would be right.

use clap::error::ErrorKind;

/// What parsers say, and what to write instead.
const PLAIN: [(&str, &str); 9] = [
    (
        "invalid digit found in string",
        "write a whole number, such as 7",
    ),
    (
        "cannot parse integer from empty string",
        "write a whole number, such as 7",
    ),
    (
        "number too large to fit in target type",
        "the number is too large",
    ),
    (
        "number too small to fit in target type",
        "the number must not be negative",
    ),
    ("invalid float literal", "write a number, such as 0.5"),
    (
        "cannot parse float from empty string",
        "write a number, such as 0.5",
    ),
    (
        "invalid IP address syntax",
        "write an address such as 10.0.0.1",
    ),
    (
        "invalid socket address syntax",
        "write an address with its port, such as 10.0.0.2:7400",
    ),
    (
        "expected number at 0",
        "write a time with its unit, such as 10ms or 1s",
    ),
];

/// Says what is wrong, or prints the help that was asked for. Returns the exit code.
pub fn explain(error: &clap::Error) -> u8 {
    if !matches!(
        error.kind(),
        ErrorKind::ValueValidation | ErrorKind::InvalidValue
    ) {
        // Whoever reads it has gone: as good.
        let _ = error.print();
    } else if std::io::IsTerminal::is_terminal(&std::io::stderr()) {
        eprint!("{}", plain(error.render().ansi().to_string()));
    } else {
        eprint!("{}", plain(error.render().to_string()));
    }
    u8::try_from(error.exit_code()).unwrap_or(2)
}

fn plain(mut text: String) -> String {
    for (parsers, ours) in PLAIN {
        text = text.replace(parsers, ours);
    }
    text
}
