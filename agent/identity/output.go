package identity

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"outrider.org/outrider/agent/identity/pki"
	"outrider.org/outrider/agent/readfile"
)

// The files of the workload's certificate, with Istio's names.
const (
	chainFile = "cert-chain.pem"
	keyFile   = "key.pem"
	rootsFile = "root-cert.pem"
)

// currentLink is the symbolic link to the folder with the current files. The name of that folder
// begins with setPrefix.
const (
	currentLink = "..data"
	setPrefix   = "..set-"
)

// OutputFiles writes the workload's certificate into a folder ([identity] output_dir). A set is the
// folder with the files of one version. The files in Dir are links through one link to the current
// set, so that a change of that link replaces all files at once:
//
//	key.pem → ..data/key.pem    ..data → ..set-1234567
//
// The files get the owner of Dir if the agent may change owners. The group of Dir may read them if
// Dir has the set-group-ID bit. If Dir does not exist, it is created and only the agent has access.
type OutputFiles struct{ Dir string }

// Write replaces the files, unless their content is the same.
func (o *OutputFiles) Write(pair *pki.Pair, roots []*x509.Certificate) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("cannot write the certificate to %s: %w", o.Dir, err)
			if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) {
				err = fmt.Errorf("%w; use a directory in /run/outrider, or one that the agent's user "+
					"owns and, under systemd, name it in ReadWritePaths= of a drop-in of "+
					"outrider.service", err)
			}
		}
	}()
	content := map[string][]byte{
		chainFile: pair.ChainPEM, keyFile: pair.KeyPEM, rootsFile: pki.EncodeCertificates(roots),
	}
	if o.holds(content) {
		return nil
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return err
	}
	set, err := os.MkdirTemp(o.Dir, setPrefix)
	if err != nil {
		return err
	}
	if err := o.fill(set, content); err != nil {
		return errors.Join(err, os.RemoveAll(set))
	}
	if err := replaceLink(filepath.Base(set), filepath.Join(o.Dir, currentLink)); err != nil {
		return errors.Join(err, os.RemoveAll(set))
	}
	for name := range content {
		target := filepath.Join(currentLink, name)
		path := filepath.Join(o.Dir, name)
		if now, err := os.Readlink(path); err == nil && now == target {
			continue
		}
		if err := replaceLink(target, path); err != nil {
			return err
		}
	}
	return o.removeOthers(set)
}

// removeOthers removes all sets except set: the previous one, and those that a killed agent left.
func (o *OutputFiles) removeOthers(set string) error {
	entries, err := os.ReadDir(o.Dir)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), setPrefix) && e.Name() != filepath.Base(set) {
			err = errors.Join(err, os.RemoveAll(filepath.Join(o.Dir, e.Name())))
		}
	}
	return err
}

// holds reports whether the files in Dir already have the content. It limits what it reads, because
// the owner of Dir may have replaced files by links to large files or devices.
func (o *OutputFiles) holds(content map[string][]byte) bool {
	dir, err := os.OpenRoot(o.Dir)
	if err != nil {
		return false
	}
	defer func() { _ = dir.Close() }()
	for name, want := range content {
		target, err := dir.Readlink(name)
		if err != nil || target != filepath.Join(currentLink, name) {
			return false
		}
		text, err := readfile.ReadIn(dir, name, int64(len(want)))
		if err != nil || !bytes.Equal(text, want) {
			return false
		}
	}
	return true
}

// fill writes and syncs the files of a set. It follows no link out of Dir, because the owner of Dir
// can replace the set by a link at any time.
func (o *OutputFiles) fill(set string, content map[string][]byte) error {
	dir, err := os.OpenRoot(o.Dir)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	into, err := dir.OpenRoot(filepath.Base(set))
	if err != nil {
		return err
	}
	defer func() { _ = into.Close() }()
	info, err := dir.Stat(".")
	if err != nil {
		return err
	}
	share := func(file *os.File, mode fs.FileMode) (err error) {
		if info.Mode()&fs.ModeSetgid != 0 { // new files have the group of Dir
			err = file.Chmod(mode)
		}
		if uid, gid, ok := ownerOf(info); ok {
			err = errors.Join(err, file.Chown(uid, gid))
		}
		return errors.Join(err, file.Sync(), file.Close())
	}
	for name, text := range content {
		file, err := into.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		_, err = file.Write(text)
		if err := errors.Join(err, share(file, 0o640)); err != nil {
			return err
		}
	}
	folder, err := into.Open(".")
	if err != nil {
		return err
	}
	return share(folder, 0o750)
}

// replaceLink atomically replaces path by a symbolic link to target.
func replaceLink(target, path string) error {
	next := path + ".next"
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(target, next); err != nil {
		return err
	}
	return os.Rename(next, path)
}

// ownerOf returns the owner of a folder. ok is false unless this process is root, which may change
// the owner of files, and the folder belongs to another user.
func ownerOf(folder fs.FileInfo) (uid, gid int, ok bool) {
	stat, ok := folder.Sys().(*syscall.Stat_t)
	if !ok || os.Geteuid() != 0 || stat.Uid == 0 {
		return 0, 0, false
	}
	return int(stat.Uid), int(stat.Gid), true
}
