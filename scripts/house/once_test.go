package house

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// once lists mechanisms that only one package may implement; other packages must use that package.
var once = []struct{ mechanism, code, only string }{
	{"peer credentials", `SO_PEERCRED|SO_PEERGROUPS|SO_PEERPIDFD|GetsockoptUcred`, "agent/unixpeer"},
	{"back-off", `min\(2 ?\*|\*= 2$|<<= 1$`, "agent/backoff"},
	{"re-execution", `(unix|syscall)\.Exec\(`, "agent/reexec"},
	{"bearer tokens", `"Bearer " \+ token`, "agent/identity/pki"},
	{"type URLs", `"type\.googleapis\.com/`, "agent/resource"},
}

func TestOncePerTree(t *testing.T) {
	packages := list(t, "./...")
	for _, o := range once {
		code, found := regexp.MustCompile(o.code), false
		for _, p := range packages {
			path := strings.TrimPrefix(p.ImportPath, module)
			if strings.HasPrefix(path, "scripts/") {
				continue
			}
			for _, name := range p.GoFiles {
				text, err := os.ReadFile(filepath.Join(p.Dir, name))
				if err != nil {
					t.Fatal(err)
				}
				for number, line := range bytes.Split(text, []byte("\n")) {
					switch {
					case !code.Match(line):
					case path == o.only:
						found = true
					default:
						t.Errorf("%s/%s:%d: use %s for %s: %s", path, name, number+1, o.only, o.mechanism,
							bytes.TrimSpace(line))
					}
				}
			}
		}
		if !found {
			t.Errorf("%s has no %s", o.only, o.code)
		}
	}
}
