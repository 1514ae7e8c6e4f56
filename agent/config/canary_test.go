package config

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// canary is the prefix of the secrets that the tests put into each key which may hold a secret. No
// output may contain it.
const canary = "canary-7f3a"

// spellings are valid and invalid ways to write a value with a secret. KEY is the key in its table,
// TABLE the table, SECRET the secret.
var spellings = map[string]string{
	"string":            "[TABLE]\nKEY = \"SECRET\"\n",
	"URL":               "[TABLE]\nKEY = \"http://user:SECRET@127.0.0.1:1/x?SECRET#SECRET\"\n",
	"fragment of a URL": "[TABLE]\nKEY = \"http://127.0.0.1:1/x#SECRET\"\n",
	"list":              "[TABLE]\nKEY = [\"SECRET\", \"SECRET\"]\n",
	"table":             "[TABLE]\nKEY = { name = \"SECRET\" }\n",
	"nested table":      "[TABLE]\nKEY = { a = { b = [\"SECRET\", { c = \"SECRET\" }] } }\n",
	"beside a URL":      "[TABLE]\nhttp = \"http://127.0.0.1:1/\"\nKEY = { name = \"SECRET\" }\n",
	"table of its own":  "[TABLE.KEY]\nname = \"SECRET\"\n",
	"list of tables":    "[[TABLE.KEY]]\nname = \"SECRET\"\n",
	"dotted key":        "[TABLE]\nKEY.name = \"SECRET\"\n",
	"list in a table":   "[TABLE]\nKEY = { name = [\"SECRET\"] }\n",
	"number":            "[TABLE]\nKEY = DIGITS\n",
	"number in a table": "[TABLE]\nKEY = { name = DIGITS }\n",
	"numbers in a list": "[TABLE]\nKEY = [DIGITS, DIGITS.5]\n",
	"unquoted":          "[TABLE]\nKEY = SECRET\n",
	"unquoted, table":   "[TABLE]\nKEY = { name = SECRET }\n",
	"unquoted, list":    "[TABLE]\nKEY = [SECRET]\n",
	"unquoted number":   "[TABLE]\nKEY = DIGITSx\n",
	"float":             "[TABLE]\nKEY = DIGITS.\n",
	"date":              "[TABLE]\nKEY = 2026-99-99TDIGITS\n",
	"large number":      "[TABLE]\nKEY = DIGITSDIGITSDIGITS\n",
	"missing quote":     "[TABLE]\nKEY = \"SECRET\n",
	"no first quote":    "[TABLE]\nKEY = SECRET\"\n",
	"open text":         "[TABLE]\nKEY = \"\"\"SECRET\nother = SECRET\n",
	"escape":            "[TABLE]\nKEY = \"\\uSECRET\"\n",
	"zero character":    "[TABLE]\nKEY = \"SECRET\\u0000\"\n",
	"twice":             "[TABLE]\nKEY = \"SECRET\"\nKEY = \"SECRET\"\n",
	"no equals sign":    "[TABLE]\nKEY \"SECRET\"\n",
	"unclosed table":    "[TABLE]\nKEY = { name = \"SECRET\"\n",
	"two values":        "[TABLE]\nKEY = \"a\" SECRET\n",
	"in the parent":     "TABLE = \"SECRET\"\n",
	"wrong key":         "[TABLE]\nKEY_ = \"SECRET\"\n",
	"at the top":        "KEY = \"SECRET\"\n",
}

// TestCanary_NotInMessages plants a secret in each concealed key in each spelling, in the main file
// and in a drop-in, and searches all public output for it. Keys come from the definitions.
func TestCanary_NotInMessages(t *testing.T) {
	valid := map[string]bool{}
	for i, full := range SecretKeys() {
		for name, spelling := range spellings {
			digits := fmt.Sprintf("9041735802%02d", i)
			at := strings.LastIndexByte(full, '.')
			text := strings.NewReplacer("TABLE", full[:at], "KEY", full[at+1:], "SECRET", canary,
				"DIGITS", digits).Replace(spelling)
			for _, file := range []string{"outrider.toml", "conf.d/50.toml"} {
				shown, ok := everything(t, file, text)
				valid[full] = valid[full] || ok
				if strings.Contains(shown, canary) || strings.Contains(shown, digits) {
					t.Errorf("%s, %s, in %s:\n%s\nshows:\n%s", full, name, file, text, shown)
				}
			}
		}
		if !valid[full] {
			t.Errorf("%s: no spelling is valid", full)
		}
	}
	if len(valid) < 6 {
		t.Errorf("only %d keys conceal their values", len(valid))
	}
}

// everything returns all public output about a configuration, and reports whether the configuration
// is valid.
func everything(t *testing.T, file, text string) (string, bool) {
	t.Helper()
	dir := t.TempDir()
	for name, content := range map[string]string{"outrider.toml": "", file: text} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var shown strings.Builder
	redacted, err := RedactText(text)
	fmt.Fprintln(&shown, redacted, err)
	loaded, err := Load(Options{Path: filepath.Join(dir, "outrider.toml")})
	if err != nil {
		fmt.Fprintln(&shown, err)
		return shown.String(), false
	}
	fmt.Fprintln(&shown, loaded.Warnings, loaded.RedactedTOMLWithSources(), loaded.Values())
	fmt.Fprintln(&shown, Compare(defaults(), loaded.Config), Compare(loaded.Config, defaults()))
	return shown.String(), true
}

func TestRedacted(t *testing.T) {
	const text = `# secret
[node]
type = "router"
metadata = { a = "secret" }
unknown = "secret"
[status.probe."a.b"]
http = "http://127.0.0.1/secret"
timeout = "2s"
[other]
key = ["secret"]
`
	const want = `node.metadata.a = "[redacted]"
node.type = "router"
node.unknown = "[redacted]"
other.key = "[redacted]"
status.probe."a.b".http = "[redacted]"
status.probe."a.b".timeout = "2s"
`
	if got, err := RedactText(text); err != nil || got != want {
		t.Errorf("%v\n%s", err, got)
	}
	if got, err := RedactText("a = secret"); err == nil || got != "" ||
		strings.Contains(err.Error(), "secret") {
		t.Errorf("%q, %v", got, err)
	}
}
