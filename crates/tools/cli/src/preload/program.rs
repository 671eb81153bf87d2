//! Whether a program can be preloaded: the dynamic loader must run for it, and heed `LD_PRELOAD`, and the
//! program must make its calls by the C library that the preload stands in front of.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use object::elf::{FileHeader64, PT_INTERP};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, ReadCache};

use crate::failure::{Failure, unreadable};

/// Scripts whose interpreter is a script, and so on: the kernel goes no further either.
const MOST_INTERPRETERS: usize = 4;
/// The kernel reads so much of a script's first line.
const FIRST_LINE: u64 = 256;

/// What to do with a program that cannot be preloaded.
const REMEDY: &str = "in a pod, run it without the preload and take its launch times at the host's end of the pod's \
                      veth (`takt veth attach`); or send by the channel API (libtakt.so), from C, Rust or by cgo";

/// The file of a program, looked for as a shell does.
pub fn find(name: &OsStr) -> Result<PathBuf, Failure> {
    if name.as_bytes().contains(&b'/') {
        return Ok(name.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|directory| directory.join(name))
        .find(|file| {
            file.metadata()
                .is_ok_and(|metadata| metadata.is_file() && metadata.mode() & 0o111 != 0)
        })
        .ok_or_else(|| Failure::Other(format!("there is no program {} in PATH", name.display())))
}

/// The C library whose dynamic loader runs a program.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Loader {
    Glibc,
    Musl,
}

/// The loader that a program is run by.
///
/// # Errors
/// Why it cannot be preloaded, if it cannot.
pub fn check(program: &Path) -> Result<Loader, Failure> {
    let mut program = program.to_owned();
    for _ in 0..MOST_INTERPRETERS {
        match interpreter(&program)? {
            Some(interpreter) => program = interpreter,
            None => break,
        }
    }
    check_privilege(&program)?;
    let file = open(&program)?;
    check_elf(&program, &ReadCache::new(file))
}

fn open(program: &Path) -> Result<File, Failure> {
    File::open(program).map_err(|error| Failure::Other(unreadable(program.display(), &error)))
}

/// The program that runs a script.
fn interpreter(program: &Path) -> Result<Option<PathBuf>, Failure> {
    let mut start = Vec::new();
    open(program)?
        .take(FIRST_LINE)
        .read_to_end(&mut start)
        .map_err(|error| Failure::Other(unreadable(program.display(), &error)))?;
    let Some(line) = start.strip_prefix(b"#!") else {
        return Ok(None);
    };
    let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let mut words = line
        .split(|byte| matches!(byte, b' ' | b'\t'))
        .filter(|word| !word.is_empty());
    let Some(interpreter) = words.next() else {
        return Ok(None);
    };
    // `#!/usr/bin/env python3`: it is the second that matters.
    if interpreter.ends_with(b"/env")
        && let Some(name) = words.next().filter(|word| word[0] != b'-')
    {
        return find(OsStr::from_bytes(name)).map(Some);
    }
    Ok(Some(OsStr::from_bytes(interpreter).into()))
}

/// The loader heeds no wishes of the environment for programs that gain privileges.
fn check_privilege(program: &Path) -> Result<(), Failure> {
    let metadata = program
        .metadata()
        .map_err(|error| Failure::Other(unreadable(program.display(), &error)))?;
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    let set_user = metadata.mode() & 0o4000 != 0 && metadata.uid() != user.as_raw();
    let set_group = metadata.mode() & 0o2000 != 0 && metadata.gid() != group.as_raw();
    let mut value = [0u8; 64];
    let capable = !user.is_root()
        && rustix::fs::getxattr(program, "security.capability", &mut value[..]).is_ok();
    if set_user || set_group || capable {
        return Err(Failure::Other(format!(
            "{} gains privileges when it is run (setuid, setgid or file capabilities): the dynamic loader does \
             not preload into it; run it as the user that it changes to, or with ambient capabilities",
            program.display()
        )));
    }
    Ok(())
}

fn check_elf<'data>(program: &Path, data: impl object::ReadRef<'data>) -> Result<Loader, Failure> {
    let cannot = |why: &str| {
        Err(Failure::Other(format!(
            "{} cannot be preloaded: {why}; {REMEDY}",
            program.display()
        )))
    };
    // Not a program of this form at all: let the kernel say so.
    let Ok(header) = FileHeader64::<Endianness>::parse(data) else {
        return Ok(Loader::Glibc);
    };
    let Ok(endian) = header.endian() else {
        return Ok(Loader::Glibc);
    };
    let here = if cfg!(target_arch = "x86_64") {
        object::elf::EM_X86_64
    } else {
        object::elf::EM_AARCH64
    };
    if header.e_machine(endian) != here {
        return cannot("it is for another kind of processor");
    }
    let is_go = header.sections(endian, data).is_ok_and(|sections| {
        [&b".go.buildinfo"[..], b".note.go.buildid"]
            .into_iter()
            .any(|name| sections.section_by_name(endian, name).is_some())
    });
    if is_go {
        return cannot(
            "it is written in Go, whose programs make system calls without the C library",
        );
    }
    let loader = header
        .program_headers(endian, data)
        .unwrap_or_default()
        .iter()
        .filter(|segment| segment.p_type(endian) == PT_INTERP)
        .find_map(|segment| segment.data(endian, data).ok());
    match loader {
        None => cannot("it is statically linked, so that the dynamic loader does not run for it"),
        Some(loader) if loader.windows(7).any(|name| name == b"ld-musl") => Ok(Loader::Musl),
        Some(_) => Ok(Loader::Glibc),
    }
}
