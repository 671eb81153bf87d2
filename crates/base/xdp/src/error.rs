//! What errors of the loader library say.

use std::error::Error;
use std::io;

/// The errno at the bottom of an error of the loader library.
pub fn errno(error: &(dyn Error + 'static)) -> Option<i32> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return error.raw_os_error();
        }
        next = error.source();
    }
    None
}

/// An error with its causes.
pub fn told(error: &dyn Error) -> String {
    let mut told = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        told.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Above(io::Error);

    impl std::fmt::Display for Above {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("cannot load")
        }
    }

    impl Error for Above {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn causes_are_told_and_the_last_ones_number_is_found() {
        let error = Above(io::Error::from_raw_os_error(libc::EPERM));
        assert_eq!(errno(&error), Some(libc::EPERM));
        assert_eq!(errno(&error.0), Some(libc::EPERM));
        assert_eq!(errno(&io::Error::other("none")), None);
        let text = told(&error);
        assert_eq!(text, format!("cannot load: {}", error.0));
    }
}
