//! Tests of the preflight: what it refuses, in what words, and that it leaves no trace.

use super::*;

/// Every name below `dir`.
fn names(dir: &Path) -> Vec<PathBuf> {
    let mut names: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    names.sort();
    names
}

#[test]
fn preflight_good_disk_passes_and_leaves_no_trace() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("kept"), b"x").unwrap();
    let before = names(dir.path());
    preflight(dir.path(), 2).unwrap();
    preflight(&dir.path().join("not/yet"), 2).unwrap();
    assert_eq!(names(dir.path()), before);
    assert_eq!(std::fs::read(dir.path().join("kept")).unwrap(), b"x");
}

#[test]
fn preflight_directory_is_a_file_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, b"x").unwrap();
    for path in [file.clone(), file.join("below")] {
        let error = preflight(&path, 1).unwrap_err();
        let PreflightError::DataDir { path: named, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!(*named, file);
    }
}

#[test]
#[ignore = "mounts a ramfs: needs root"]
fn preflight_filesystem_without_direct_io_names_path_and_filesystem() {
    let dir = tempfile::tempdir().unwrap();
    let run = |program: &str, args: &[&str]| {
        let status = std::process::Command::new(program)
            .args(args)
            .arg(dir.path())
            .status();
        assert!(status.unwrap().success(), "{program}");
    };
    run("mount", &["-t", "ramfs", "sealog-test"]);
    let error = preflight(dir.path(), 1);
    let left = names(dir.path());
    run("umount", &[]);
    let text = error.unwrap_err().to_string();
    assert!(text.contains("ramfs"), "{text}");
    assert!(text.contains(&*dir.path().to_string_lossy()), "{text}");
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn preflight_directory_that_takes_no_files_names_it() {
    // procfs takes no new files at all.
    let error = preflight(Path::new("/proc/self/sealog"), 1).unwrap_err();
    assert!(error.to_string().contains("/proc/self"), "{error}");
}

#[test]
fn preflight_tmpfs_passes_or_is_named() {
    if filesystem_name(Path::new("/dev/shm")) != "tmpfs" {
        return;
    }
    match preflight(Path::new("/dev/shm"), 1) {
        Ok(()) => {}
        Err(error) => assert!(error.to_string().contains("tmpfs"), "{error}"),
    }
}

#[test]
fn check_memlock_too_small_names_have_and_need() {
    assert!(check_memlock(512 * 1024, 8).is_ok());
    let text = check_memlock(65_536, 3).unwrap_err().to_string();
    for part in ["65536", "524288", "3 shards", "memlock"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn io_uring_error_every_cause_is_one_line_naming_it() {
    for errno in [
        libc::EPERM,
        libc::ENOSYS,
        libc::ENOMEM,
        libc::EMFILE,
        libc::EINVAL,
    ] {
        let text = io_uring_error(io::Error::from_raw_os_error(errno)).to_string();
        assert!(text.starts_with("io_uring"), "{text}");
        assert!(!text.contains('\n'), "{text}");
    }
    assert!(
        io_uring_cause(Some(libc::EPERM), "2")
            .0
            .contains("io_uring_disabled is 2")
    );
    assert!(io_uring_cause(Some(libc::EPERM), "0").0.contains("seccomp"));
    assert!(io_uring_cause(Some(libc::ENOSYS), "").0.contains("older"));
}

/// A filter that answers io_uring_setup with `errno`, on this thread alone.
fn forbid_io_uring(errno: i32) {
    let statement = |code: u32, k: u32, jt: u8, jf: u8| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let mut filter = [
        // Load the number of the system call.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        statement(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            libc::SYS_io_uring_setup as u32,
            0,
            1,
        ),
        statement(
            libc::BPF_RET | libc::BPF_K,
            libc::SECCOMP_RET_ERRNO | errno as u32,
            0,
            0,
        ),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: plain arguments; affects this thread only.
    let status = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(status, 0);
    // SAFETY: `program` and the filter it points to outlive the call.
    let status = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) };
    assert_eq!(status, 0);
}

#[test]
fn preflight_io_uring_forbidden_names_it_and_leaves_no_trace() {
    for errno in [libc::EPERM, libc::ENOSYS] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_owned();
        let error = std::thread::spawn(move || {
            forbid_io_uring(errno);
            preflight(&path, 1).unwrap_err()
        })
        .join()
        .unwrap();
        assert!(matches!(error, PreflightError::IoUring { .. }), "{error}");
        assert!(error.to_string().contains("seccomp"), "{error}");
        assert!(names(dir.path()).is_empty());
    }
}
