//! The bindings' own tests, at a real runtime with the library of this workspace.

use std::path::Path;
use std::process::Command;

use takt_testing::{Directory, repository};

use super::support::{Language, Node, Program, ended_well, library, source};

/// A directory with the libraries under the names that the loader looks for.
pub fn libraries() -> Directory {
    let directory = Directory::new();
    for (name, built) in [
        ("libtakt.so", "libtakt.so"),
        ("libtakt.so.0", "libtakt.so"),
        ("libtakt_embedded.so", "libtakt_embedded.so"),
    ] {
        std::os::unix::fs::symlink(library(built), directory.join(name)).expect("a link");
    }
    directory
}

/// A program of another language at a node that has a peer, with the libraries where it finds them.
fn command(program: &str, directory: &Path, nodes: &[Node; 2], libraries: &Directory) -> Command {
    let mut command = Command::new(program);
    command
        .current_dir(directory)
        .env("TAKT_SOCKET", nodes[0].socket())
        .env("TAKT_TEST_FAR_SOCKET", nodes[1].socket())
        .env("TAKT_LIBRARY", libraries.join("libtakt.so.0"))
        .env("LD_LIBRARY_PATH", libraries.path());
    command
}

#[test]
fn python() {
    let (nodes, libraries) = (Node::pair(), libraries());
    let directory = repository().join("bindings/python");
    let mut tests = command("python3", &directory, &nodes, &libraries);
    tests
        .env("PYTHONPATH", &directory)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .args(["-m", "unittest", "discover", "-s", "tests"]);
    ended_well(tests.output());
}

#[test]
fn a_python_wheel_has_all_that_it_needs() {
    let (libraries, built, installed) = (libraries(), Directory::new(), Directory::new());
    let mut wheel = Command::new("python3");
    wheel
        .arg(repository().join("bindings/python/backend.py"))
        .arg(built.path())
        .env("TAKT_LIBRARIES", libraries.path());
    let name = ended_well(wheel.output());
    let mut unpack = Command::new("python3");
    unpack
        .args(["-m", "zipfile", "-e", name.trim()])
        .arg(installed.path());
    ended_well(unpack.output());
    let code = "import takt\n\
        with takt.Session(embedded=True) as session, session.stream() as stream:\n\
        \x20with stream.source(7) as source, stream.sink(7) as sink:\n\
        \x20\x20source.send(b'hello')\n\
        \x20\x20print(bytes(sink.receive(60)).decode())";
    let mut program = Command::new("python3");
    program
        .args(["-c", code])
        .env_remove("TAKT_LIBRARY")
        .env("PYTHONPATH", installed.path())
        .env("TAKT_PORT", "0")
        .env("TAKT_SOCKET", "/nonexistent/takt.sock");
    assert_eq!(ended_well(program.output()), "hello\n");
}

#[test]
fn cpp() {
    let node = Node::start();
    Program::compile(Language::Cpp, &[source("cpp.cpp")]).run(&node);
}

#[test]
fn go() {
    if Command::new("go").arg("version").output().is_err() {
        eprintln!("skipped: no Go here (https://go.dev/dl)");
        return;
    }
    let (nodes, libraries) = (Node::pair(), libraries());
    let directory = repository().join("bindings/go");
    let mut tests = command("go", &directory, &nodes, &libraries);
    build_go(&mut tests, &libraries).args(["test", "-count=1", "./..."]);
    ended_well(tests.output());
}

/// Lets cgo find the header and the library.
pub fn build_go<'a>(command: &'a mut Command, libraries: &Directory) -> &'a mut Command {
    let headers = repository().join("include");
    command
        .env("CGO_CFLAGS", format!("-I{}", headers.display()))
        .env("CGO_LDFLAGS", format!("-L{}", libraries.path().display()))
}
