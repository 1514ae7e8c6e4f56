package prometheus_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/scripts/parts"
)

// example is the example of a scrape configuration in a package, with the file of alerting rules
// that it loads.
type example struct{ scrape, rules string }

var (
	ofAgent      = example{"prometheus.yml", "outrider.rules.yml"}
	ofDiscoveryd = example{"../discoveryd/prometheus/prometheus-discoveryd.yml",
		"../discoveryd/prometheus/outrider-discoveryd.rules.yml"}
)

// script runs a script in scripts/ and returns the words of its output.
func script(t *testing.T, arguments ...string) []string {
	t.Helper()
	out, err := exec.Command(filepath.Join(parts.RepositoryRoot(), "scripts", arguments[0]),
		arguments[1:]...).Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		t.Fatalf("%s: %v: %s", arguments, err, exit.Stderr)
	}
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(out))
}

// program returns the path of a program in Debian's package prometheus.
func program(t *testing.T, name string) string {
	t.Helper()
	return filepath.Join(script(t, "get-packages", "prometheus")[0], "usr/bin", name)
}

// promtool runs Debian's promtool in a folder.
func promtool(t *testing.T, folder string, arguments ...string) {
	t.Helper()
	command := exec.Command(program(t, "promtool"), arguments...)
	command.Dir = folder
	if out, err := command.CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", arguments, err, out)
	}
}

// configuration writes the scrape configuration to a temporary directory, with the path of the
// rules in this repository and with further replacements (old, new, …). It returns the path.
func (e example) configuration(t *testing.T, changes ...string) string {
	t.Helper()
	folder := t.TempDir()
	text, err := os.ReadFile(e.scrape)
	if err != nil {
		t.Fatal(err)
	}
	rules, err := filepath.Abs(e.rules)
	if err != nil {
		t.Fatal(err)
	}
	changes = append([]string{"/usr/share/outrider/prometheus/" + filepath.Base(e.rules), rules},
		changes...)
	for i := 0; i < len(changes); i += 2 {
		if !strings.Contains(string(text), changes[i]) {
			t.Fatalf("the example has no %s", changes[i])
		}
	}
	path := filepath.Join(folder, "prometheus.yml")
	if err := os.WriteFile(path, []byte(strings.NewReplacer(changes...).Replace(string(text))),
		0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// server is a Prometheus that runs with the scrape configuration of an example.
type server struct{ address string }

// prometheus starts a Prometheus in which a job scrapes port instead of the port in the example
// (packaged). It scrapes every 5 s, as often as Envoy flushes histograms, because irate compares
// the last two scrapes.
func (e example) prometheus(t *testing.T, job string, packaged, port int) server {
	t.Helper()
	path := e.configuration(t, fmt.Sprintf("localhost:%d", packaged),
		fmt.Sprintf("localhost:%d", port), "- job_name: "+job,
		"- job_name: "+job+"\n  scrape_interval: 5s")
	p := server{address: fmt.Sprintf("127.0.0.1:%d", parts.FreePort(t))}
	parts.StartProcess(t, exec.Command(program(t, "prometheus"), "--config.file", path,
		"--storage.tsdb.path", filepath.Dir(path)+"/data", "--web.listen-address", p.address))
	parts.Eventually(t, time.Minute, "Prometheus has scraped", func() bool {
		found, err := p.query(`up{job="` + job + `"} == 1`)
		return err == nil && found > 0
	})
	return p
}

// query returns the number of samples in the result of an expression whose value is not NaN.
func (p server) query(expression string) (int, error) {
	response, err := http.Get("http://" + p.address + "/api/v1/query?query=" +
		url.QueryEscape(expression))
	if err != nil {
		return 0, err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err
	}
	var answer struct {
		Error string
		Data  struct{ Result []struct{ Value [2]any } }
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return 0, fmt.Errorf("%s: %w", text, err)
	}
	if answer.Error != "" {
		return 0, errors.New(answer.Error)
	}
	found := 0
	for _, sample := range answer.Data.Result {
		if sample.Value[1] != "NaN" {
			found++
		}
	}
	return found, nil
}
