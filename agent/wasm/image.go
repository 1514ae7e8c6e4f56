package wasm

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"path"
	"slices"

	image "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/credentials"
)

// Media types of image layers that may contain a Wasm module. Other layers of an image are
// metadata.
var (
	moduleTypes  = []string{"application/vnd.module.wasm.content.layer.v1+wasm", "application/wasm"}
	archiveTypes = []string{"application/vnd.oci.image.layer.v1.tar+gzip",
		"application/vnd.docker.image.rootfs.diff.tar.gzip"}
)

const (
	maxManifestBytes = 4 << 20
	moduleName       = "plugin.wasm" // name of the module's file in an archive
)

// fetchImage fetches the Wasm module of an OCI or Docker image, HOST/PATH[:TAG][@DIGEST]. The
// module is a layer of its own, or a file in the last layer if that is an archive. The sums of the
// returned Module are the digests of the image's manifest and, if there is one, of the image index.
// secret is a Docker configuration (JSON) with credentials, or "".
func (c *Client) fetchImage(
	ctx context.Context, from, secret string,
) (found Module, err error) {
	repository, err := remote.NewRepository(from)
	if err != nil {
		return found, err
	}
	store, err := credentials.NewMemoryStoreFromDockerConfig([]byte(cmp.Or(secret, "{}")))
	if err != nil {
		return found, fmt.Errorf("cannot parse the image pull secret: %w", err)
	}
	client := &auth.Client{Client: c.http(), Cache: auth.NewCache(),
		Credential: func(ctx context.Context, host string) (auth.Credential, error) {
			if host == "registry-1.docker.io" {
				host = "index.docker.io" // Docker's configuration lists Docker Hub under this name
			}
			return store.Get(ctx, host)
		}}
	if host, loopback := isLoopback(repository.Reference.Registry); loopback && c.allowed(host) {
		repository.PlainHTTP, client.BlockedRealmPrefixes = true, []netip.Prefix{}
	}
	repository.Client = client
	layers, err := manifest(ctx, repository, &found)
	if err != nil {
		return found, err
	}
	layer := slices.IndexFunc(layers, func(of image.Descriptor) bool {
		return slices.Contains(moduleTypes, of.MediaType)
	})
	archive := layer < 0
	if archive {
		layer = len(layers) - 1
	}
	if layer < 0 || archive && !slices.Contains(archiveTypes, layers[layer].MediaType) {
		return found, fmt.Errorf("%s has no layer with a Wasm module", from)
	}
	body, err := repository.Blobs().Fetch(ctx, layers[layer])
	if err != nil {
		return found, err
	}
	if found.Code, err = readAll(body, layers[layer], MaxBytes); err == nil && archive {
		found.Code, err = extract(found.Code)
	}
	if err != nil {
		return found, fmt.Errorf("cannot read the Wasm module of image %s: %w", from, err)
	}
	return found, nil
}

// manifest returns the layers of an image, and adds the digests of its manifest and index to m.
// From an index it chooses the first image, because Wasm modules do not depend on a platform.
func manifest(
	ctx context.Context, repository *remote.Repository, m *Module,
) ([]image.Descriptor, error) {
	reference := cmp.Or(repository.Reference.Reference, "latest")
	for {
		of, body, err := repository.FetchReference(ctx, reference)
		if err != nil {
			return nil, err
		}
		text, err := readAll(body, of, maxManifestBytes)
		if err != nil {
			return nil, fmt.Errorf("cannot read the manifest of %s: %w", repository.Reference, err)
		}
		m.SHA256Sums = append(m.SHA256Sums, of.Digest.Encoded())
		var parsed struct{ Layers, Manifests []image.Descriptor }
		if err := json.Unmarshal(text, &parsed); err != nil {
			return nil, fmt.Errorf("cannot parse the manifest of %s: %w", repository.Reference, err)
		}
		i := slices.IndexFunc(parsed.Manifests, func(of image.Descriptor) bool {
			// images of platform "unknown" are attestations
			return of.Platform == nil || of.Platform.OS != "unknown"
		})
		if i < 0 || len(m.SHA256Sums) > 1 {
			return parsed.Layers, nil
		}
		reference = parsed.Manifests[i].Digest.String()
	}
}

// readAll reads the content that a descriptor describes, up to most bytes, and verifies its digest.
func readAll(body io.ReadCloser, of image.Descriptor, most int64) ([]byte, error) {
	defer func() { _ = body.Close() }()
	if of.Size > most {
		return nil, fmt.Errorf("it has more than %d MB", most>>20)
	}
	return content.ReadAll(body, of)
}

// extract returns the Wasm module in a compressed archive.
func extract(compressed []byte) ([]byte, error) {
	unzipped, err := gzip.NewReader(bytes.NewReader(compressed))
	if err != nil {
		return nil, err
	}
	archive := tar.NewReader(io.LimitReader(unzipped, MaxBytes))
	for {
		header, err := archive.Next()
		if err == nil && (path.Base(header.Name) != moduleName || header.Typeflag != tar.TypeReg) {
			continue
		}
		// size of a sparse file, including its holes
		if err == nil && header.Size > MaxBytes {
			return nil, fmt.Errorf("%s has more than %d MB", moduleName, MaxBytes>>20)
		}
		var code []byte
		if err == nil {
			code, err = io.ReadAll(archive)
		}
		if err != nil {
			return nil, fmt.Errorf("no complete %s in the first %d MB of the archive: %w",
				moduleName, MaxBytes>>20, err)
		}
		return code, nil
	}
}

// isLoopback reports whether a registry, host or host:port, is on this host, and returns its host.
func isLoopback(registry string) (host string, loopback bool) {
	host, _, err := net.SplitHostPort(registry)
	if err != nil {
		host = registry
	}
	ip := net.ParseIP(host)
	return host, host == "localhost" || ip != nil && ip.IsLoopback()
}
