package config

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// layout holds the paths of a configuration and the defaults that depend on them.
type layout struct {
	main    string // the main file
	dropIns string // directory of drop-ins
	runtime string // default of paths.runtime_dir
	state   string // default of paths.state_dir

	meshFolder string // default of discovery.files; "" = the default of the definition
}

const (
	defaultDirectory = "/etc/outrider"
	defaultRuntime   = "/run/outrider"
	defaultState     = "/var/lib/outrider"
)

// maxSize is the largest accepted size of a configuration file in bytes.
const maxSize = 1 << 20

// instanceName matches names that are safe in file names, unit names and the short paths of
// sockets.
var instanceName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,31}$`)

// reservedInstances returns names that no instance may have, because unit names, users or files of
// Outrider already use them.
func reservedInstances() []string { return []string{"envoy", "outrider", "discoveryd"} }

// CheckInstanceName returns an error if name is not a valid instance name.
func CheckInstanceName(name string) error {
	if p := checkInstance(name); p != nil {
		return p
	}
	return nil
}

func checkInstance(name string) *Error {
	if slices.Contains(reservedInstances(), name) {
		return &Error{Key: "--instance", Message: quote(name) + " is reserved",
			Fix: "choose another name"}
	}
	if !instanceName.MatchString(name) {
		return &Error{Key: "--instance", Message: quote(name) + " is not a valid instance name",
			Fix: "allowed are up to 32 letters, digits, - and _, the first one a letter or digit"}
	}
	return nil
}

// WithMainFile returns options that load another main file. If the file belongs to an instance in
// ConfigDirectory, the options select that instance with its drop-ins and directories.
func (o Options) WithMainFile(file string) Options {
	o.Path = file
	absolute, err := filepath.Abs(file)
	if err != nil {
		return o // Load reports the error
	}
	name, isMain := strings.CutSuffix(filepath.Base(absolute), ".toml")
	if !isMain || filepath.Dir(absolute) != filepath.Clean(cmp.Or(o.ConfigDirectory,
		defaultDirectory)) ||
		checkInstance(name) != nil {
		return o
	}
	o.Path, o.Instance = "", name
	return o
}

// JoinFiles are the paths of the files that `outrider join` writes. They need not exist.
type JoinFiles struct {
	Main    string // main file of the configuration
	DropIn  string
	JoinDir string // directory of Token and Roots
	Token   string
	Roots   string
}

const joinToken = "join/token"

// JoinFiles returns the paths of the files that `outrider join` writes.
func (o Options) JoinFiles() (JoinFiles, error) {
	paths, p := o.layout()
	if p != nil {
		return JoinFiles{}, p
	}
	base := strings.TrimSuffix(paths.dropIns, "conf.d")
	return JoinFiles{Main: paths.main, DropIn: filepath.Join(paths.dropIns, "90-join.toml"),
		JoinDir: base + "join", Token: base + joinToken, Roots: base + "join/root.pem"}, nil
}

// IsJoinToken reports whether a path is that of the token which `outrider join` stores.
func IsJoinToken(path string) bool { return strings.HasSuffix(path, joinToken) }

// layout returns the paths of the configuration.
func (o Options) layout() (layout, *Error) {
	if o.Instance != "" {
		if p := checkInstance(o.Instance); p != nil {
			return layout{}, p
		}
	}
	directory := o.ConfigDirectory
	if directory == "" {
		directory = defaultDirectory
	}
	p := layout{runtime: defaultRuntime, state: defaultState}
	switch {
	case o.Path != "":
		main, err := filepath.Abs(o.Path)
		if err != nil {
			return layout{},
				&Error{Position: Position{File: o.Path}, Message: "cannot be found: " + err.Error()}
		}
		p.main, p.dropIns = main, filepath.Join(filepath.Dir(main), "conf.d")
	case o.Instance != "":
		base := filepath.Join(directory, o.Instance)
		p.main, p.dropIns, p.meshFolder = base+".toml", base+".conf.d", base+".mesh.d"
		p.runtime, p.state = filepath.Join(p.runtime, o.Instance),
			filepath.Join(p.state, o.Instance)
	default:
		p.main, p.dropIns = filepath.Join(directory, "outrider.toml"),
			filepath.Join(directory, "conf.d")
	}
	return p, nil
}

// readSources reads the main file and then the drop-ins in name order. It skips hidden files, which
// editors create.
func readSources(p layout, unreadable func(string) string) ([]source, Errors) {
	var sources []source
	var errs Errors
	read := func(path string) {
		text, err := readFile(path)
		if err != nil {
			errs = append(errs, fileError(p, path, err, unreadable))
			return
		}
		sources = append(sources, source{path, text})
	}
	read(p.main)
	entries, err := os.ReadDir(p.dropIns) // sorted by name
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, fileError(p, p.dropIns, err, unreadable))
	}
	for _, entry := range entries {
		name := entry.Name()
		if strings.HasSuffix(name, ".toml") && !strings.HasPrefix(name, ".") && !entry.IsDir() {
			read(filepath.Join(p.dropIns, name))
		}
	}
	return sources, errs
}

func readFile(path string) (string, error) {
	// O_NONBLOCK: opening a named pipe would block until it has a writer
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }()
	if info, err := file.Stat(); err == nil && info.Mode()&fs.ModeNamedPipe != 0 &&
		!strings.HasPrefix(path, "/dev/") {
		// Named pipes below /dev are accepted, because they have a writer and reading does not
		// block: /dev/stdin and a shell's /dev/fd/N.
		return "", errors.New("the file is a named pipe")
	}
	text, err := io.ReadAll(io.LimitReader(file, maxSize+1))
	if err != nil {
		return "", err
	}
	if len(text) > maxSize {
		return "", fmt.Errorf("the file is larger than %d bytes", maxSize)
	}
	return string(text), nil
}

// fileError describes an error from reading path. With Options.UnreadableReason it includes the
// fix.
func fileError(p layout, path string, err error, unreadable func(string) string) *Error {
	var pathError *fs.PathError
	if errors.As(err, &pathError) {
		err = pathError.Err // the path is in Position
	}
	e := &Error{Position: Position{File: path},
		Message: "cannot be read: " + err.Error(), Cause: err}
	switch {
	case path == p.main && errors.Is(err, fs.ErrNotExist):
		e.Message = "there is no such file"
		e.Fix = "create it (an empty file is a valid configuration) or name another with --config FILE"
	case errors.Is(err, fs.ErrPermission):
		e.Fix = "let the agent's user read it"
		if unreadable == nil {
			break
		}
		if _, fix, found := strings.Cut(unreadable(path), path+": "); found {
			e.Fix = fix
		}
	case errors.Is(err, fs.ErrNotExist):
		e.Fix = "it was removed just now, or is a dangling symbolic link"
	}
	return e
}
