package envoy

import (
	"cmp"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// InstalledPath returns the path of a version in the folder that "outrider envoy install" fills,
// installed or not.
func InstalledPath(folder, version string) string {
	return filepath.Join(folder, "envoy-"+version, "envoy")
}

// InstalledVersions returns the versions installed in folder, newest first.
func InstalledVersions(folder string) ([]string, error) {
	paths, err := filepath.Glob(InstalledPath(folder, "*"))
	if err != nil {
		return nil, err
	}
	var versions []string
	for _, path := range paths {
		name := filepath.Base(filepath.Dir(path))
		versions = append(versions, strings.TrimPrefix(name, "envoy-"))
	}
	slices.SortFunc(versions, func(a, b string) int { return CompareVersions(b, a) })
	return versions, nil
}

// CompareVersions orders "1.9.1" before "1.40.0".
func CompareVersions(a, b string) int {
	return slices.CompareFunc(strings.Split(a, "."), strings.Split(b, "."), func(x, y string) int {
		m, errM := strconv.Atoi(x)
		n, errN := strconv.Atoi(y)
		if errM != nil || errN != nil {
			return cmp.Compare(x, y)
		}
		return cmp.Compare(m, n)
	})
}
