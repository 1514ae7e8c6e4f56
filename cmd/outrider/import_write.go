package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/google/renameio/v2"
)

// targets are the files that an import writes. add and addHosts record errors, which write returns.
type targets struct {
	user    string // owner of files with mode 0400
	group   string // path of a file, whose group the written files get
	replace bool

	files []targetFile
	errs  []error
}

// targetFile is a file to write, with the result of the write.
type targetFile struct {
	Path string `json:"path"`
	// "created", "replaced", "unchanged", "permissions corrected" or "names added"
	Result string `json:"result"`
	// Lines are the lines added to the file, if Result is "names added".
	Lines []string `json:"lines,omitempty"`

	text []byte
	mode fs.FileMode
	uid  int // -1: the writer's
	gid  int // -1: that of the file targets.group
}

// add adds a file to write. It ignores an empty text.
func (p *targets) add(path string, text []byte, mode fs.FileMode) {
	if len(text) == 0 {
		return
	}
	file := targetFile{Path: path, Result: "created", text: text, mode: mode, uid: -1, gid: -1}
	if mode == 0o400 {
		var err error
		if file.uid, err = lookUp(p.user); err != nil {
			p.errs = append(p.errs, err)
		}
	}
	switch now, err := os.ReadFile(path); {
	case err == nil && bytes.Equal(now, text):
		file.Result = "unchanged"
	case err == nil && !p.replace:
		p.errs = append(p.errs,
			fmt.Errorf("%s exists with other content; compare the files, then add --replace", path))
	case err == nil:
		file.Result = "replaced"
	case !errors.Is(err, fs.ErrNotExist):
		p.errs = append(p.errs, err)
	}
	p.files = append(p.files, file)
}

// istiodName matches the names of istiod that istioctl writes to the file hosts.
var istiodName = regexp.MustCompile(`^istiod(-[a-z0-9-]+)?\.[a-z0-9-]+\.svc$`)

// addHosts adds lines to the host's hosts file. A line is an error if its name has another address
// in the file, or is not a name of istiod.
func (p *targets) addHosts(path string, more []byte) {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	now, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		p.errs = append(p.errs, err)
		return
	}
	known := map[string]string{} // address by name
	for line := range strings.Lines(string(now)) {
		line, _, _ = strings.Cut(line, "#")
		if fields := strings.Fields(line); len(fields) > 1 {
			for _, name := range fields[1:] {
				known[name] = fields[0]
			}
		}
	}
	file := targetFile{Path: path, Result: "unchanged", mode: 0o644, uid: -1}
	text := slices.Clone(now)
	for line := range strings.Lines(string(more)) {
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		if _, err := netip.ParseAddr(fields[0]); err != nil || len(fields) != 2 {
			p.errs = append(p.errs,
				fmt.Errorf("hosts: line %q is not of the form ADDRESS NAME", line))
			continue
		}
		switch known[fields[1]] {
		case fields[0]:
		case "":
			if !istiodName.MatchString(fields[1]) {
				p.errs = append(p.errs, fmt.Errorf("hosts: %q is not a name of istiod; remove the line",
					fields[1]))
				continue
			}
			if len(text) > 0 && text[len(text)-1] != '\n' {
				text = append(text, '\n')
			}
			added := strings.Join(fields, " ")
			text = append(text, added+"\n"...)
			file.Result, file.Lines = "names added", append(file.Lines, added)
		default:
			p.errs = append(p.errs, fmt.Errorf("%s: the address of %s is %s in this file, but %s "+
				"in the VM's file hosts; remove the wrong line", path, fields[1],
				known[fields[1]], fields[0]))
		}
	}
	file.text = text
	if info, err := os.Stat(path); err == nil {
		file.mode, file.gid = info.Mode().Perm(), groupOf(info)
	}
	if len(more) > 0 {
		p.files = append(p.files, file)
	}
}

func groupOf(info fs.FileInfo) int { return int(status(info).Gid) }

// lookUp returns the UID of a user.
func lookUp(name string) (int, error) {
	found, err := user.Lookup(name)
	if err != nil {
		return -1, fmt.Errorf("%w; install Outrider, which creates the user", err)
	}
	return strconv.Atoi(found.Uid)
}

// write writes the files in order, each atomically. It writes none if any of them conflicts with an
// existing file.
func (p *targets) write() ([]targetFile, error) {
	main, err := os.Stat(p.group)
	if err != nil {
		p.errs = append(p.errs, fmt.Errorf("%w; install Outrider, or create the file", err))
	}
	if err := errors.Join(p.errs...); err != nil {
		return nil, err
	}
	for i, file := range p.files {
		if file.gid < 0 {
			file.gid = groupOf(main)
		}
		if file.Result == "unchanged" {
			info, err := os.Stat(file.Path)
			if err != nil || info.Mode() == file.mode && groupOf(info) == file.gid &&
				(file.uid < 0 || int(status(info).Uid) == file.uid) {
				continue
			}
			p.files[i].Result = "permissions corrected"
		}
		if err := write(file); err != nil {
			return p.files[:i], err
		}
	}
	return p.files, nil
}

// write writes a file atomically. If the folder does not exist, it creates the folder with mode
// 0755, independent of the umask.
func write(file targetFile) error {
	folder := filepath.Dir(file.Path)
	if _, err := os.Stat(folder); errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return err
		}
		if err := os.Chmod(folder, 0o755); err != nil { //nolint:gosec // the agent's user reads in it
			return err
		}
	}
	pending, err := renameio.NewPendingFile(file.Path,
		renameio.WithTempDir(filepath.Dir(file.Path)))
	if err != nil {
		return err
	}
	defer func() { _ = pending.Cleanup() }()
	if _, err = pending.Write(file.text); err == nil {
		err = pending.Chown(file.uid, file.gid)
	}
	if err == nil {
		err = pending.Chmod(file.mode)
	}
	if err == nil {
		err = pending.CloseAtomicallyReplace()
	}
	return err
}
