//! `takt preload`: what it runs, with what, and what it refuses.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use support::{Ran, takt};
use takt_testing::Directory;

/// A file that stands for the library where nothing is loaded from it.
fn library(directory: &Directory) -> PathBuf {
    let path = directory.join("libtakt_preload.so");
    std::fs::write(&path, "").expect("a file");
    path
}

fn preload(directory: &Directory, command: &[&str]) -> Ran {
    takt(&[&["preload", "--"], command].concat())
        .env("TAKT_PRELOAD_LIBRARY", library(directory))
        .env_remove("LD_PRELOAD")
        .output()
        .expect("takt")
        .into()
}

/// Compiles a program that ends at once.
fn program(directory: &Directory, name: &str, source: &str, options: &[&str]) -> PathBuf {
    compiled("cc", directory, name, source, options)
}

fn compiled(
    compiler: &str,
    directory: &Directory,
    name: &str,
    source: &str,
    options: &[&str],
) -> PathBuf {
    let file = directory.join(&format!("{name}.c"));
    std::fs::write(&file, source).expect("a source file");
    let program = directory.join(name);
    let output = Command::new(compiler)
        .args(options)
        .arg("-o")
        .args([&program, &file])
        .output()
        .expect("the compiler: run scripts/setup.sh");
    assert!(output.status.success(), "{output:?}");
    program
}

fn path(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

#[test]
fn a_grid_that_is_no_rule_is_refused_before_anything_runs() {
    let directory = Directory::new();
    for (rule, word) in [
        ("1", "no time with a unit"),
        ("1ms+1ms", "offset"),
        ("1ms,x=1", "\"x\""),
    ] {
        let ran: Ran = takt(&["preload", "--grid", rule, "--", "echo", "ran"])
            .env("TAKT_PRELOAD_LIBRARY", library(&directory))
            .output()
            .expect("takt")
            .into();
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.err.contains(word) && ran.out.is_empty(), "{ran:?}");
    }
}

const EMPTY: &str = "int main(void) { return 0; }";

#[test]
fn the_program_runs_with_the_library_in_front_and_its_own_arguments() {
    let directory = Directory::new();
    // The stand-in is no library: the loader says so, and runs the program all the same.
    let ran = preload(
        &directory,
        &["sh", "-c", "echo $LD_PRELOAD $1; exit 7", "sh", "-x"],
    );
    assert_eq!(ran.code, Some(7), "{ran:?}");
    let expected = library(&directory).canonicalize().expect("the file");
    assert_eq!(ran.out.trim(), format!("{} -x", expected.display()));
}

#[test]
fn wishes_become_the_environment_of_the_program() {
    let directory = Directory::new();
    let script = "echo $TAKT_PRELOAD $TAKT_SOCKET $TAKT_PRELOAD_GRID $LD_PRELOAD";
    let ran: Ran = takt(&[
        "preload",
        "--required",
        "--socket",
        "/x/y",
        "--grid",
        "1ms+250us,port=5001",
        "--grid",
        "2ms",
        "sh",
        "-c",
        script,
    ])
    .env("TAKT_PRELOAD_LIBRARY", library(&directory))
    .env("LD_PRELOAD", "/other.so")
    .output()
    .expect("takt")
    .into();
    assert!(
        ran.out
            .starts_with("required /x/y 1ms+250us,port=5001;2ms "),
        "{ran:?}"
    );
    assert!(ran.out.trim().ends_with(":/other.so"), "{ran:?}");
}

#[test]
fn a_statically_linked_program_is_refused_with_what_to_do() {
    let directory = Directory::new();
    let program = program(&directory, "static", EMPTY, &["-static"]);
    let ran = preload(&directory, &[path(&program)]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.contains("statically linked"), "{ran:?}");
    assert!(ran.err.contains("libtakt.so"), "{ran:?}");
}

#[test]
fn a_program_in_go_is_refused_however_it_is_linked() {
    let directory = Directory::new();
    let source = "__attribute__((section(\".go.buildinfo\"), used)) static const char info[] = \"\\xff Go buildinf:\";\n\
                  int main(void) { return 0; }";
    for options in [&[][..], &["-static"]] {
        let program = program(&directory, "go", source, options);
        let ran = preload(&directory, &[path(&program)]);
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert!(ran.err.contains("Go"), "{ran:?}");
    }
}

#[test]
fn a_program_of_musl_is_run_with_the_library_for_musl_or_not_at_all() {
    let directory = Directory::new();
    let musl = compiled("musl-gcc", &directory, "musl", EMPTY, &[]);
    let ran = preload(&directory, &[path(&musl)]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let wanted = "takt-preload/$LIB/libtakt_preload.so";
    for word in ["linked with musl", wanted] {
        assert!(ran.err.contains(word), "{ran:?}");
    }
    let library = directory.join(wanted);
    std::fs::create_dir_all(library.parent().expect("a directory")).expect("directories");
    std::fs::write(&library, "").expect("a file");
    let ran = preload(&directory, &[path(&musl)]);
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
    // What programs of either are run with, so that they can start each other.
    let ran = preload(&directory, &["sh", "-c", "echo $LD_PRELOAD"]);
    assert_eq!(ran.out.trim(), path(&library), "{ran:?}");
}

#[test]
fn a_script_is_what_its_interpreter_is() {
    use std::os::unix::fs::PermissionsExt;
    let directory = Directory::new();
    let interpreter = program(&directory, "static", EMPTY, &["-static"]);
    let script = directory.join("script");
    for (first, code) in [
        (path(&interpreter), 1),
        ("/bin/sh", 0),
        ("/usr/bin/env sh", 0),
    ] {
        std::fs::write(&script, format!("#!{first}\nexit 0\n")).expect("a script");
        let executable = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&script, executable).expect("permissions");
        let ran = preload(&directory, &[path(&script)]);
        assert_eq!(ran.code, Some(code), "{first}: {ran:?}");
    }
}

#[test]
fn what_is_not_there_is_named() {
    let directory = Directory::new();
    let ran = preload(&directory, &["no-such-program"]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.err.contains("no-such-program"), "{ran:?}");
    let ran: Ran = takt(&["preload", "true"])
        .env("TAKT_PRELOAD_LIBRARY", "/nonexistent/preload.so")
        .output()
        .expect("takt")
        .into();
    assert_eq!(ran.code, Some(1));
    assert!(ran.err.contains("/nonexistent/preload.so"), "{ran:?}");
}
