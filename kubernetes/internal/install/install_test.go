package install

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func inode(t *testing.T, path string) uint64 {
	t.Helper()
	about, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return about.Sys().(*syscall.Stat_t).Ino
}

func TestADirectoryBecomesWhatTheImageHasAndWhatIsInUseStays(t *testing.T) {
	from, to := t.TempDir(), filepath.Join(t.TempDir(), "runtime")
	write(t, filepath.Join(from, "takt"), "one")
	write(t, filepath.Join(from, "takt-preload", "lib", "libtakt_preload.so"), "glibc")
	// An earlier version's, and what an ended one has begun.
	write(t, filepath.Join(to, "takt-preload", "old", "libtakt_preload.so"), "older")
	write(t, filepath.Join(to, ".takt-123"), "half")
	if lacks, err := Lacks(from, to); err != nil || !lacks {
		t.Errorf("before, it lacks nothing: %v", err)
	}
	if err := Directory(from, to); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"takt": "one", "takt-preload/lib/libtakt_preload.so": "glibc"} {
		text, err := os.ReadFile(filepath.Join(to, path))
		about, _ := os.Stat(filepath.Join(to, path))
		if err != nil || string(text) != want || about.Mode().Perm() != 0o755 {
			t.Errorf("%s is %q, %v", path, text, err)
		}
	}
	for _, gone := range []string{"takt-preload/old", ".takt-123"} {
		if _, err := os.Lstat(filepath.Join(to, gone)); !os.IsNotExist(err) {
			t.Errorf("%s is still there: %v", gone, err)
		}
	}

	if lacks, err := Lacks(from, to); err != nil || lacks {
		t.Errorf("it lacks something: %v", err)
	}

	// A container has the file open: it goes on with what it has, and what has not changed is the very same file.
	inUse, err := os.Open(filepath.Join(to, "takt"))
	if err != nil {
		t.Fatal(err)
	}
	defer inUse.Close()
	library := inode(t, filepath.Join(to, "takt-preload/lib/libtakt_preload.so"))
	write(t, filepath.Join(from, "takt"), "two")
	if err := Directory(from, to); err != nil {
		t.Fatal(err)
	}
	held := make([]byte, 3)
	if _, err := inUse.Read(held); err != nil || string(held) != "one" {
		t.Errorf("what is in use has become %q, %v", held, err)
	}
	if text, _ := os.ReadFile(filepath.Join(to, "takt")); string(text) != "two" {
		t.Errorf("takt is %q", text)
	}
	if inode(t, filepath.Join(to, "takt-preload/lib/libtakt_preload.so")) != library {
		t.Error("a file that has not changed was made anew")
	}
}

func TestWhatCannotBeInstalledIsNamed(t *testing.T) {
	to := t.TempDir()
	if err := File("/nowhere", filepath.Join(to, "takt")); err == nil {
		t.Error("nothing was installed")
	}
	if entries, _ := os.ReadDir(to); len(entries) > 0 {
		t.Errorf("%v is left", entries)
	}
	if err := Directory(filepath.Join(to, "none"), filepath.Join(to, "other")); err == nil {
		t.Error("a directory that is not there was installed")
	}
}
