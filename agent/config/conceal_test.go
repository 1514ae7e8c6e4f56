package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// secretive is a configuration with the secret "hidden" in each key that may contain one.
const secretive = `
[node]
metadata = { account = { key = "hidden1" }, list = ["hidden2"] }
[status]
application_metrics = "http://user:hidden3@127.0.0.1:9090/metrics?token=hidden4"
[status.probe.app]
http = "http://hidden5@127.0.0.1:8080/healthz?hidden6"
headers = { "X-Any" = "hidden7" }
`

func TestWhatMayBeASecretIsShownToNobody(t *testing.T) {
	load := func(text string) (*Loaded, error) {
		path := filepath.Join(t.TempDir(), "outrider.toml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return Load(Options{Path: path, Environment: func(string) string { return "" }})
	}
	loaded, err := load(secretive)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Count(loaded.TOMLWithSources(), "hidden") != 7 {
		t.Errorf("what is for those who may read the file is not all: %s", loaded.TOMLWithSources())
	}
	shown := loaded.RedactedTOMLWithSources()
	for _, v := range loaded.Values() {
		shown += v.Text + "\n"
	}
	plain, err := load("")
	if err != nil {
		t.Fatal(err)
	}
	changes := Compare(plain.Config, loaded.Config)
	if changes = append(changes, Compare(loaded.Config, plain.Config)...); len(changes) < 10 {
		t.Errorf("not all changes are told: %+v", changes)
	}
	for _, change := range changes {
		shown += change.Old + change.New + "\n"
	}
	if strings.Contains(shown, "hidden") {
		t.Errorf("a secret is shown:\n%s", shown)
	}
	for _, want := range []string{`"http://[redacted]@127.0.0.1:9090/metrics?[redacted]"`,
		`headers.X-Any = "[redacted]"`, `metadata.account.key = "[redacted]"`} {
		if !strings.Contains(shown, want) {
			t.Errorf("%s is not shown", want)
		}
	}
	if other, err := load(strings.ReplaceAll(secretive, "hidden7", "hidden8")); err != nil ||
		other.Hash == loaded.Hash || len(Compare(loaded.Config, other.Config)) != 1 {
		t.Errorf("a change of a secret is no change: %v", err)
	}
}

func TestWhatIsWrongWithASecretDoesNotShowIt(t *testing.T) {
	for _, text := range []string{
		"[status]\napplication_metrics = \"ftp://user:hidden@127.0.0.1\"\n",
		"[status]\napplication_metrics = \"user:hidden@127.0.0.1\"\n",
		"[status.probe.app]\nhttp = \"http:/127.0.0.1?hidden\"\n",
		"[status.probe.app]\nheaders = \"hidden\"\n",
		"[status.probe.app]\nheaders = { A = [\"hidden\"] }\n",
		"[health]\nexec = \"hidden\"\n",
		"[health]\nexec = [\"program\", \"hidden\"]\nunit = \"a.service\"\n",
	} {
		path := filepath.Join(t.TempDir(), "outrider.toml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(Options{Path: path}); err == nil ||
			strings.Contains(err.Error(), "hidden") {
			t.Errorf("%s: %v", text, err)
		}
	}
}
