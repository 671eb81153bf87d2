use std::fs::File;

use proptest::prelude::*;

use super::*;

fn unsealed(len: u64) -> OwnedFd {
    let fd = memfd(&c"takt-test".to_owned()).unwrap();
    File::from(fd.try_clone().unwrap()).set_len(len).unwrap();
    fd
}

fn add_seals(fd: &OwnedFd, seals: i32) {
    // SAFETY: plain system call on a descriptor that we own.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) }).unwrap();
}

fn opened(arena: &Arena) -> Arena {
    Arena::open(arena.fd().try_clone_to_owned().unwrap(), arena.len()).unwrap()
}

#[test]
fn both_sides_see_each_others_bytes_and_words() {
    let runtime = Arena::create("takt-test", 8192).unwrap();
    let application = opened(&runtime);

    let window = application.slice(100, 5).unwrap();
    window.write_from(0, b"hello").unwrap();
    let mut copy = [0; 5];
    runtime
        .slice(100, 5)
        .unwrap()
        .read_into(0, &mut copy)
        .unwrap();
    assert_eq!(&copy, b"hello");

    runtime
        .atomic_u64(8)
        .unwrap()
        .store(u64::MAX, Ordering::Release);
    let word = application.atomic_u64(8).unwrap();
    assert_eq!(word.load(Ordering::Acquire), u64::MAX);
    let half = application.atomic_u32(12).unwrap();
    assert_eq!(half.load(Ordering::Acquire), u32::MAX);
}

#[test]
fn an_arena_is_zeroed_and_made_of_whole_pages() {
    let arena = Arena::create("takt-test", 1).unwrap();
    assert_eq!(arena.len(), page_size());
    let mut content = vec![1; arena.len()];
    arena
        .slice(0, arena.len())
        .unwrap()
        .read_into(0, &mut content)
        .unwrap();
    assert!(content.iter().all(|&byte| byte == 0));
}

#[test]
fn the_name_shows_in_proc() {
    let arena = Arena::create("takt-session-7", 1).unwrap();
    let link = format!("/proc/self/fd/{}", arena.fd().as_raw_fd());
    let target = std::fs::read_link(link).unwrap();
    assert_eq!(target.to_str().unwrap(), "/memfd:takt-session-7 (deleted)");
}

#[test]
fn the_size_of_an_arena_can_never_change_and_no_seal_can_be_added() {
    let arena = Arena::create("takt-test", 8192).unwrap();
    let file = File::from(arena.fd().try_clone_to_owned().unwrap());
    for len in [0, 4096, 1 << 20] {
        let error = file.set_len(len).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EPERM), "length {len}");
    }
    // SAFETY: plain system call on a descriptor that we own.
    let sealed = check(unsafe {
        libc::fcntl(
            file.as_raw_fd(),
            libc::F_ADD_SEALS,
            libc::F_SEAL_FUTURE_WRITE,
        )
    });
    assert_eq!(sealed.unwrap_err().raw_os_error(), Some(libc::EPERM));
}

#[test]
fn an_unsealed_or_half_sealed_memfd_is_refused() {
    let fd = unsealed(8192);
    for (seals, allowed) in [
        (0, false),
        (libc::F_SEAL_SHRINK, false),
        (libc::F_SEAL_SHRINK | libc::F_SEAL_GROW, true),
    ] {
        add_seals(&fd, seals);
        let result = Arena::open(fd.try_clone().unwrap(), 8192);
        match result {
            Ok(_) => assert!(allowed, "seals {seals:#x}"),
            Err(ArenaError::NotSealed { seals: found }) => {
                assert!(!allowed, "seals {seals:#x}");
                assert_eq!(found & libc::F_SEAL_GROW, 0);
            }
            Err(other) => panic!("seals {seals:#x}: {other}"),
        }
    }
}

#[test]
fn a_memfd_that_is_too_small_is_refused() {
    let fd = unsealed(8192);
    add_seals(&fd, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW);
    let result = Arena::open(fd, 8193);
    assert!(matches!(
        result,
        Err(ArenaError::TooSmall {
            actual: 8192,
            wanted: 8193
        })
    ));
}

#[test]
fn a_descriptor_that_is_no_memfd_is_refused() {
    let fd = OwnedFd::from(File::open("/dev/null").unwrap());
    assert!(matches!(
        Arena::open(fd, 4096),
        Err(ArenaError::Examine { .. })
    ));
}

#[test]
fn impossible_names_and_lengths_are_refused() {
    assert!(matches!(
        Arena::create("a\0b", 4096),
        Err(ArenaError::Name { .. })
    ));
    assert!(matches!(
        Arena::create(&"x".repeat(300), 4096),
        Err(ArenaError::Create { .. })
    ));
    for len in [0, usize::MAX, isize::MAX as usize] {
        assert!(matches!(
            Arena::create("takt-test", len),
            Err(ArenaError::Length { .. })
        ));
        let fd = unsealed(4096);
        assert!(matches!(
            Arena::open(fd, len),
            Err(ArenaError::Length { .. })
        ));
    }
}

#[test]
fn words_that_are_not_aligned_or_not_inside_are_refused() {
    let arena = Arena::create("takt-test", 4096).unwrap();
    assert!(arena.atomic_u32(4092).is_ok());
    assert!(arena.atomic_u64(4088).is_ok());
    for offset in [1, 2, 3, 4093, 4096, usize::MAX, usize::MAX - 3] {
        assert!(arena.atomic_u32(offset).is_err(), "u32 at {offset}");
        assert!(arena.atomic_u64(offset).is_err(), "u64 at {offset}");
    }
    assert_eq!(arena.atomic_u64(4).unwrap_err().align, 8);
}

#[test]
fn a_copy_that_does_not_fit_changes_nothing() {
    let arena = Arena::create("takt-test", 4096).unwrap();
    let window = arena.slice(0, 8).unwrap();
    assert!(window.write_from(5, b"1234").is_err());
    assert!(window.write_from(usize::MAX, b"1234").is_err());
    assert!(window.copy_to(arena.slice(16, 7).unwrap()).is_err());
    let mut copy = [7; 9];
    assert!(window.read_into(0, &mut copy).is_err());
    assert_eq!(copy, [7; 9]);
    arena.slice(0, 9).unwrap().read_into(0, &mut copy).unwrap();
    assert_eq!(copy, [0; 9]);
}

#[test]
fn bytes_are_copied_from_one_arena_to_another_and_between_overlapping_windows() {
    let from = Arena::create("takt-test", 4096).unwrap();
    let to = Arena::create("takt-test", 4096).unwrap();
    from.slice(10, 8)
        .unwrap()
        .write_from(0, b"abcdefgh")
        .unwrap();
    from.slice(10, 8)
        .unwrap()
        .copy_to(to.slice(20, 100).unwrap())
        .unwrap();
    let whole = to.slice(20, 10).unwrap();
    whole
        .sub(0, 8)
        .unwrap()
        .copy_to(whole.sub(2, 8).unwrap())
        .unwrap();
    let mut copy = [0; 10];
    whole.read_into(0, &mut copy).unwrap();
    assert_eq!(&copy, b"ababcdefgh");
}

#[test]
fn a_forked_child_has_no_mapping_of_an_opened_arena() {
    let runtime = Arena::create("takt-test", 4096).unwrap();
    let application = opened(&runtime);
    let address = application.slice(0, 1).unwrap().as_ptr();
    // SAFETY: the child makes two async-signal-safe calls and exits.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let mut resident = 0_u8;
        // SAFETY: mincore only examines the range; ENOMEM says that it is not mapped.
        unsafe {
            let mapped = libc::mincore(address.cast(), 4096, &raw mut resident) == 0;
            libc::_exit(i32::from(mapped));
        }
    }
    let mut status = -1;
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
}

#[test]
fn dropping_an_arena_removes_its_mapping() {
    let arena = Arena::create("takt-unmapped-when-dropped", 4096).unwrap();
    let maps = || std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(maps().contains("takt-unmapped-when-dropped"));
    drop(arena);
    assert!(!maps().contains("takt-unmapped-when-dropped"));
}

proptest! {
    #[test]
    fn a_window_exists_exactly_when_its_range_lies_inside(
        offset in prop_oneof![0..5000_usize, any::<usize>()],
        len in prop_oneof![0..5000_usize, any::<usize>()],
    ) {
        let arena = Arena::create("takt-test", 4096).unwrap();
        let inside = offset as u128 + len as u128 <= 4096;
        match arena.slice(offset, len) {
            Ok(window) => {
                prop_assert!(inside);
                prop_assert_eq!(window.len(), len);
                let start = arena.slice(0, 0).unwrap().as_ptr() as usize;
                prop_assert_eq!(window.as_ptr() as usize, start + offset);
            }
            Err(error) => {
                prop_assert!(!inside);
                prop_assert_eq!(error, OutOfBounds { offset, len, limit: 4096, align: 1 });
            }
        }
    }
}

#[test]
fn a_protected_region_is_written_by_its_owner_and_by_nobody_else_whatever_they_try() {
    let page = page_size();
    let file = Region::create("takt-test", 2 * page).unwrap();
    let reader = file.try_clone().unwrap();
    assert!(matches!(
        Region::open(reader.try_clone().unwrap(), page),
        Err(ArenaError::NotSealed { .. })
    ));
    let mut owner = Arena::create("takt-test", 4 * page).unwrap();
    owner.overlay(&file, page, 2 * page, false).unwrap();
    Region::protect(&file).unwrap();
    assert!(Region::is_protected(&reader));

    owner
        .slice(page + 5, 3)
        .unwrap()
        .write_from(0, b"abc")
        .unwrap();
    owner.slice(0, 4).unwrap().write_from(0, b"mine").unwrap();
    let region = Region::open(reader.try_clone().unwrap(), 2 * page).unwrap();
    // SAFETY: three mapped bytes that nobody changes.
    let read = unsafe { std::slice::from_raw_parts(region.at(5, 3).unwrap().as_ptr(), 3) };
    assert_eq!(read, b"abc");
    assert!(region.at(2 * page - 1, 2).is_err());

    // A sink that means to write: by its descriptor, by another of the same file, by a mapping, by turning its own.
    assert!(Arena::open(reader.try_clone().unwrap(), 2 * page).is_err());
    let again = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(format!("/proc/self/fd/{}", reader.as_raw_fd()));
    for fd in [
        Some(reader.try_clone().unwrap()),
        again.ok().map(OwnedFd::from),
    ] {
        let Some(fd) = fd else { continue };
        assert!(Arena::map(fd.try_clone().unwrap(), page).is_err());
        // SAFETY: writes from a live byte.
        let written = unsafe { libc::pwrite(fd.as_raw_fd(), b"x".as_ptr().cast(), 1, 0) };
        assert_eq!(written, -1);
        let flags = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: plain system call.
        let punched = unsafe { libc::fallocate(fd.as_raw_fd(), flags, 0, page as i64) };
        assert_eq!(punched, -1);
    }
    let turned = unsafe {
        // SAFETY: a mapping of this test's.
        libc::mprotect(
            region.at(0, page).unwrap().as_ptr().cast(),
            page,
            libc::PROT_READ | libc::PROT_WRITE,
        )
    };
    assert_eq!(turned, -1);
    assert_eq!(read, b"abc");
    owner
        .slice(page + 5, 1)
        .unwrap()
        .write_from(0, b"A")
        .unwrap();
    drop(owner);
    // SAFETY: as above.
    let read = unsafe { std::slice::from_raw_parts(region.at(5, 3).unwrap().as_ptr(), 3) };
    assert_eq!(read, b"Abc");
}

#[test]
fn a_region_lies_in_an_arena_on_whole_pages_within_it_or_not_at_all() {
    let page = page_size();
    let file = Region::create("takt-test", page).unwrap();
    let mut arena = Arena::create("takt-test", 2 * page).unwrap();
    for (offset, len) in [
        (1, page),
        (2 * page, page),
        (page, 0),
        (0, page - 1),
        (usize::MAX, page),
    ] {
        assert!(
            arena.overlay(&file, offset, len, true).is_err(),
            "{offset} {len}"
        );
    }
    assert!(matches!(
        arena.overlay(&file, 0, 2 * page, true),
        Err(ArenaError::TooSmall { .. })
    ));
    assert!(arena.overlay(&file, page, page, true).is_ok());
}

#[test]
fn a_range_that_is_populated_has_all_its_memory_before_it_is_sealed_and_keeps_it() {
    use std::os::unix::fs::MetadataExt;
    let page = page_size();
    let file = Region::create("takt-test", 8 * page).unwrap();
    let mut owner = Arena::create("takt-test", 16 * page).unwrap();
    owner.overlay(&file, 4 * page, 8 * page, false).unwrap();
    owner
        .slice(5 * page, 4)
        .unwrap()
        .write_from(0, b"kept")
        .unwrap();
    let has = |file: &OwnedFd| {
        let metadata = File::from(file.try_clone().unwrap()).metadata();
        metadata.unwrap().blocks() * 512
    };
    assert!(has(&file) < 8 * page as u64);
    owner.populate(4 * page, 8 * page).unwrap();
    assert_eq!(has(&file), 8 * page as u64);
    Region::protect(&file).unwrap();
    assert_eq!(has(&file), 8 * page as u64);
    let region = Region::open(file, 8 * page).unwrap();
    // SAFETY: four mapped bytes that nobody changes.
    let read = unsafe { std::slice::from_raw_parts(region.at(page, 4).unwrap().as_ptr(), 4) };
    assert_eq!(read, b"kept");
    assert!(owner.populate(16 * page, page).is_err());
}
