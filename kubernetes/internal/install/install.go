// Package install puts programs and libraries of an image onto the node, each in one step: a container may be starting with them.
package install

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// File replaces a program, or leaves it as it is if it is the same: what runs keeps its pages.
func File(from, to string) error {
	if err := file(from, to); err != nil {
		return fmt.Errorf("cannot install %s: %w", to, err)
	}
	return nil
}

func file(from, to string) error {
	if same(from, to) {
		return nil
	}
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	target, err := os.CreateTemp(filepath.Dir(to), ".takt-*")
	if err != nil {
		return err
	}
	defer os.Remove(target.Name())
	_, err = io.Copy(target, source)
	if err := errors.Join(err, target.Chmod(0o755), target.Sync(), target.Close()); err != nil {
		return err
	}
	return os.Rename(target.Name(), to)
}

// same says that both are programs of the same content. Where that cannot be seen, they are not.
func same(one, two string) bool {
	about, err := os.Lstat(two)
	if err != nil || !about.Mode().IsRegular() || about.Mode().Perm() != 0o755 {
		return false
	}
	a, err := os.ReadFile(one)
	if err != nil || int64(len(a)) != about.Size() {
		return false
	}
	b, err := os.ReadFile(two)
	return err == nil && bytes.Equal(a, b)
}

// Lacks says that a directory has not all files of another one, by name.
func Lacks(from, to string) (lacks bool, err error) {
	err = filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		if _, err := os.Lstat(filepath.Join(to, path[len(from):])); errors.Is(err, fs.ErrNotExist) {
			lacks = true
			return fs.SkipAll
		} else if err != nil {
			return err
		}
		return nil
	})
	return lacks, err
}

// Directory makes a directory hold the files of another one, each as by File, and no others. What an ended one has begun goes, too.
func Directory(from, to string) error {
	err := filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		if !entry.Type().IsRegular() {
			return fmt.Errorf("%s is no file", path)
		}
		return File(path, filepath.Join(to, path[len(from):]))
	})
	if err != nil {
		return err
	}
	return filepath.WalkDir(to, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == to {
			return err
		}
		if _, err := os.Lstat(filepath.Join(from, path[len(to):])); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := os.RemoveAll(path); err != nil {
			return fmt.Errorf("cannot take away what an earlier version has brought: %w", err)
		}
		if entry.IsDir() {
			return fs.SkipDir
		}
		return nil
	})
}
