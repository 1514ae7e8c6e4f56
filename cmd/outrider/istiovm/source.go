// Package istiovm converts the files of an Istio VM, which `istioctl x workload entry configure`
// writes for the istio-sidecar package, to a configuration of Outrider.
package istiovm

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protojson"
	meshapi "istio.io/api/mesh/v1alpha1"
	"sigs.k8s.io/yaml"
)

// maxSize bounds the size of each file, in bytes.
const maxSize = 1 << 20

// VMFiles contains the files of an Istio VM. Fields of missing files are empty.
type VMFiles struct {
	// Environment contains the variables of cluster.env, sidecar.env and proxyMetadata in
	// mesh.yaml. If a variable is in several of them, the first of these has precedence.
	Environment map[string]string
	Proxy       *meshapi.ProxyConfig // content of defaultConfig in mesh.yaml
	Token       []byte               // content of istio-token
	Root        []byte               // content of root-cert.pem
	Hosts       []byte               // content of hosts

	unknown []string // notes about unknown fields
}

// Read reads the files in a directory. It returns an error if both cluster.env and mesh.yaml are
// missing.
func Read(directory string) (*VMFiles, error) {
	contents := map[string][]byte{}
	for _, name := range []string{"sidecar.env", "cluster.env", "mesh.yaml", "istio-token",
		"root-cert.pem", "hosts"} {
		text, err := readFile(filepath.Join(directory, name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("cannot read the files of the VM: %w", err)
		}
		contents[name] = text
	}
	if contents["cluster.env"] == nil && contents["mesh.yaml"] == nil {
		return nil, fmt.Errorf("%s contains neither cluster.env nor mesh.yaml; specify the "+
			"output directory of \"istioctl x workload entry configure\"", directory)
	}
	return parse(contents)
}

func readFile(path string) ([]byte, error) {
	// The program runs as root and reads files of another user. That user may have replaced a file
	// by a symbolic link, or by a FIFO, for whose writer a normal open would wait.
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ELOOP) {
		return nil, notRegular(path)
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, cmp.Or(err, notRegular(path))
	}
	text, err := io.ReadAll(io.LimitReader(file, maxSize+1))
	if err == nil && len(text) > maxSize {
		err = fmt.Errorf("%s is larger than %d bytes", path, maxSize)
	}
	return append([]byte{}, text...), err
}

func notRegular(path string) error {
	return fmt.Errorf("%s is not a regular file; replace it with a regular file of the same "+
		"content", path)
}

// parse parses files, whose contents are given by name.
func parse(contents map[string][]byte) (*VMFiles, error) {
	s := &VMFiles{Environment: map[string]string{}, Token: contents["istio-token"],
		Root: contents["root-cert.pem"], Hosts: contents["hosts"]}
	if err := s.parseMesh(contents["mesh.yaml"]); err != nil {
		return nil, err
	}
	maps.Copy(s.Environment, s.Proxy.GetProxyMetadata())
	for _, name := range []string{"sidecar.env", "cluster.env"} {
		if err := parseEnvironment(name, string(contents[name]), s.Environment); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// parseMesh parses mesh.yaml. Fields that this version does not know cause a note.
func (s *VMFiles) parseMesh(text []byte) error {
	mesh := &meshapi.MeshConfig{}
	json, err := yaml.YAMLToJSON(text)
	if err != nil {
		return fmt.Errorf("mesh.yaml: %w", err)
	}
	if string(json) == "null" {
		return nil
	}
	if err := protojson.Unmarshal(json, mesh); err != nil {
		if lax := (protojson.UnmarshalOptions{DiscardUnknown: true}); lax.Unmarshal(json, mesh) != nil {
			return fmt.Errorf("mesh.yaml: %w", err)
		}
		s.unknown = append(s.unknown,
			"mesh.yaml has a field that this version does not know: "+err.Error())
	}
	s.Proxy = mesh.DefaultConfig
	return nil
}

var (
	assignment = regexp.MustCompile(`^(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_]*)=`)
	// piece matches the beginning of a shell word that is in single quotes, in double quotes,
	// escaped, or unquoted.
	piece = regexp.MustCompile("(?s)^(?:'([^']*)'|\"((?:[^\"\\\\$`]|\\\\.)*)\"|\\\\(.)|" +
		"([^\\s'\"\\\\$`;&|<>()]+))")
	escaped = regexp.MustCompile("(?s)\\\\([\"\\\\$`])")
)

// parseEnvironment parses shell assignments and adds them to variables. Expansions such as $NAME
// are errors, because their results depend on the shell that evaluates them.
func parseEnvironment(name, text string, variables map[string]string) error {
	for rest := text; ; {
		rest = strings.TrimLeft(rest, " \t\r\n;")
		if rest == "" {
			return nil
		}
		if rest[0] == '#' {
			_, rest, _ = strings.Cut(rest, "\n")
			continue
		}
		line := 1 + strings.Count(text[:len(text)-len(rest)], "\n")
		match := assignment.FindStringSubmatch(rest)
		if match == nil {
			return fmt.Errorf("%s:%d: the line is not an assignment; write NAME='value'", name,
				line)
		}
		rest = rest[len(match[0]):]
		value := ""
		for part := piece.FindStringSubmatch(rest); part != nil; part = piece.FindStringSubmatch(rest) {
			value += part[1] + escaped.ReplaceAllString(part[2], "$1") + part[3] + part[4]
			rest = rest[len(part[0]):]
		}
		if rest != "" && !strings.ContainsRune(" \t\r\n;", rune(rest[0])) {
			return fmt.Errorf("%s:%d: %s: the value has shell syntax that is not supported; "+
				"write the literal value in single quotes", name, line, match[1])
		}
		variables[match[1]] = value
	}
}
