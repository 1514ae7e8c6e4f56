package identity

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"time"

	"outrider.org/outrider/agent/backoff"
	"outrider.org/outrider/agent/credential"
	"outrider.org/outrider/agent/identity/pki"
	"outrider.org/outrider/agent/readfile"
)

// Files that cannot be used are read again without a change, because a certificate may become valid
// or a wrong clock may be corrected. The pauses double from firstReread to lastReread.
const (
	firstReread  = 100 * time.Millisecond
	lastReread   = time.Minute
	maxFileBytes = 4 << 20
)

// report passes a new version of a secret, or the error of an attempt, to the Manager.
type report func(*material, error)

// source locates the files that a worker reads.
type source struct {
	files  SecretFiles
	usage  pki.Usage
	denied func(*os.File) string // returns why Envoy must not have a file; nil: it may have all
	// credential, unless nil, locates the files to read instead of files, and checks their owners.
	credential *credential.Files
}

// paths returns the files to watch.
func (s source) paths() []string {
	if s.credential != nil {
		return s.credential.AllPaths()
	}
	return s.files.paths()
}

// locate returns the files to read.
func (s source) locate() (SecretFiles, error) {
	if s.credential != nil {
		found, err := s.credential.ExistingFiles()
		if err == nil {
			err = found.CheckOwners()
		}
		if err != nil {
			return SecretFiles{}, fmt.Errorf("cannot read certificates: %w", err)
		}
		files := SecretFiles{Cert: found.Cert, Key: found.Key, Root: found.AuthoritiesPath()}
		if len(found.CRL) > 0 {
			files.CRL = found.CRL[0]
		}
		return files, nil
	}
	return s.files, nil
}

// readFiles reads the files of a secret whenever they change, until ctx ends. A read may hang, so
// no other goroutine waits for the one that calls readFiles.
func (m *Manager) readFiles(ctx context.Context, from source, report report) {
	changes, stop := m.watch(from.paths())
	defer stop()
	retries := backoff.Backoff{Min: firstReread, Max: lastReread}
	var lists revocations
	for {
		version, err := from.read(m.options.Now())
		if err == nil {
			err = lists.check(version)
		}
		if ctx.Err() != nil {
			return
		}
		report(version, err)
		wait := time.Duration(math.MaxInt64)
		if err != nil {
			wait = retries.Next()
		}
		switch sleep(ctx, wait, changes) {
		case ended:
			return
		case changed:
			retries.Reset()
		case elapsed:
		}
	}
}

// revocations is the state of the revocation lists of a secret.
type revocations struct {
	exist   bool      // the last accepted version has revocation lists
	missing time.Time // when the absence of the lists was first found; zero: they exist
}

// check returns an error while revocation lists have been missing for less than failureGrace:
// somebody may be replacing them, and the revoked certificates must not be accepted meanwhile.
func (r *revocations) check(version *material) error {
	if version.revoked != nil || !r.exist {
		*r = revocations{exist: version.revoked != nil}
		return nil
	}
	if r.missing.IsZero() {
		r.missing = time.Now()
	}
	if time.Since(r.missing) < failureGrace {
		return errors.New("the revocation lists (ca.crl) were removed just now; the previous " +
			"ones stay in force for a moment")
	}
	*r = revocations{}
	return nil
}

// watch returns a channel that receives when files may have changed, until stop is called.
func (m *Manager) watch(paths []string) (changes <-chan struct{}, stop func()) {
	signal := make(chan struct{}, 1)
	return signal, m.options.Watcher.Watch(paths, func() {
		select {
		case signal <- struct{}{}:
		default: // a signal is pending
		}
	})
}

// paths returns the files of a certificate and key, or of roots.
func (f SecretFiles) paths() []string {
	if f.Cert != "" {
		return []string{f.Cert, f.Key}
	}
	return []string{f.Root}
}

// read reads and checks a certificate and its key, or roots.
func (s source) read(now time.Time) (*material, error) {
	files, err := s.locate()
	if err != nil {
		return nil, err
	}
	version := &material{obtained: now, source: FromFiles}
	if files.Root != "" {
		in, err := readFile(files.Root, s.denied)
		if err != nil {
			return nil, err
		}
		if version.roots, err = pki.ParseRoots(in, now); err != nil || files.CRL == "" {
			return version, err
		}
		if in, err = readFile(files.CRL, s.denied); err != nil {
			return nil, err
		}
		version.revoked, err = pki.ParseRevocations(in)
		return version, err
	}
	cert, err := readFile(files.Cert, s.denied)
	if err != nil {
		return nil, err
	}
	key, err := readFile(files.Key, s.denied)
	if err != nil {
		return nil, err
	}
	if version.pair, err = pki.ParsePair(cert, key, s.usage); err != nil {
		return nil, err
	}
	return version, version.pair.CheckTime(now)
}

// unreadable is an error that wraps fs.ErrPermission; its text includes the fix.
type unreadable struct {
	why string
	error
}

func (u unreadable) Error() string { return u.why }
func (u unreadable) Unwrap() error { return u.error }

// explain adds the fix to an error of a file that the agent may not read.
func (m *Manager) explain(err error) error {
	at, found := errors.AsType[*fs.PathError](err)
	if found && errors.Is(err, fs.ErrPermission) && m.options.UnreadableReason != nil {
		if why := m.options.UnreadableReason(at.Path); why != "" {
			return unreadable{why, err}
		}
	}
	return err
}

// readFile reads a file. If denied is not nil and returns a reason, readFile returns it as an
// error.
func readFile(path string, denied func(*os.File) string) (pki.PEMInput, error) {
	file, err := readfile.OpenRegular(path)
	if err != nil {
		return pki.PEMInput{}, fmt.Errorf("cannot read certificates: %w", err)
	}
	defer func() { _ = file.Close() }()
	if denied != nil {
		if why := denied(file); why != "" {
			return pki.PEMInput{}, errors.New(why)
		}
	}
	text, err := io.ReadAll(io.LimitReader(file, maxFileBytes))
	if err != nil {
		return pki.PEMInput{}, fmt.Errorf("cannot read certificates: %w", err)
	}
	return pki.PEMInput{File: path, PEM: text}, nil
}
