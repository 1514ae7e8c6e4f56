package discovery_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"google.golang.org/protobuf/proto"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/resource"
)

// runs starts servers on the same files, one after the other, like restarts of an agent.
type runs struct {
	t                       *testing.T
	objects, mesh, lastGood string
	refusals                string
	await                   bool
	log                     bytes.Buffer
	server                  *discovery.Server
	changes                 chan []string
	end                     func()
}

func newRuns(t *testing.T) *runs {
	directory := t.TempDir()
	l := &runs{t: t, objects: filepath.Join(directory, "mesh.d"), mesh: filepath.Join(directory,
		"mesh.yml"), lastGood: filepath.Join(directory, "last-good.json"),
		refusals: filepath.Join(directory, "refusals"), end: func() {}}
	if err := os.Mkdir(l.objects, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.end() })
	return l
}

// next stops the running server and starts the next one.
func (l *runs) next() {
	l.t.Helper()
	l.end()
	l.log.Reset()
	l.changes = make(chan []string)
	var err error
	l.server, err = discovery.New(discovery.Options{Files: []string{l.objects},
		Settings: l.settings(), LastGoodFile: l.lastGood, RefusalFile: l.refusals, AwaitFileListing: l.await,
		ProxyNamespaces: func() []string { return []string{"bank"} }, ChangedPaths: l.changes,
		Logger: slog.New(slog.NewTextHandler(&l.log, nil))})
	if err != nil {
		l.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.server.Run(ctx) }()
	l.end = func() {
		cancel()
		if err := <-done; err != nil {
			l.t.Error(err)
		}
		l.end = func() {}
	}
	l.changes <- nil // the server receives this once it has read all files and stored its state
}

func (l *runs) settings() discovery.Settings {
	return discovery.Settings{MeshConfigFile: l.mesh}
}

// put writes a mesh file and makes the server read it.
func (l *runs) put(name, text string) {
	l.t.Helper()
	path := l.mesh
	if name != "" {
		path = filepath.Join(l.objects, name)
	}
	write(l.t, path, text)
	if l.server != nil {
		l.changes <- []string{path}
		l.changes <- nil // the server receives this once it has processed the previous change
	}
}

// expect compares the served hosts and their connect timeouts. problems are parts of the expected
// problems, in order; persists reports whether a last-good file is expected.
func (l *runs) expect(what, hosts string, persists bool, problems ...string) {
	l.t.Helper()
	snapshot, _ := feedOf(l.t, l.server, "sidecar").Current()
	got := ""
	for _, host := range []string{"a", "b"} {
		if r := snapshot.ByType(resource.ClusterType)["outbound|80||"+host+".test"]; r != nil {
			var cluster clusterv3.Cluster
			if err := proto.Unmarshal(r.EncodedMessage(), &cluster); err != nil {
				l.t.Fatal(err)
			}
			got += fmt.Sprintf("%s %v ", host, cluster.ConnectTimeout.AsDuration())
		}
	}
	if got = strings.TrimSpace(got); got != hosts {
		l.t.Errorf("%s: %q is served, want %q", what, got, hosts)
	}
	_, err := os.Stat(l.lastGood)
	if err == nil != persists || err != nil && !errors.Is(err, fs.ErrNotExist) {
		l.t.Errorf("%s: the file: %v", what, err)
	}
	reported := l.server.Problems()
	if len(reported) != len(problems) {
		l.t.Fatalf("%s: problems %v, want %v", what, reported, problems)
	}
	for i, problem := range problems {
		if !strings.Contains(reported[i].String(), problem) {
			l.t.Errorf("%s: problem %v, want %s", what, reported[i], problem)
		}
	}
}

func TestLastGood_NextServerServesInvalidObjects(t *testing.T) {
	l := newRuns(t)
	a, b := fmt.Sprintf(webEntry, "a", "10.0.0.1"), fmt.Sprintf(webEntry, "b", "10.0.0.2")
	l.put("a.yaml", a)
	l.put("b.yaml", b)
	l.put("", "connectTimeout: 2s\n")
	l.next()
	l.expect("all is good", "a 2s b 2s", false)
	l.next()
	l.expect("all was good", "a 2s b 2s", false)

	l.put("a.yaml", strings.Replace(a, "STATIC", "STATISCH", 1))
	l.expect("an object is bad", "a 2s b 2s", true, "STATISCH")
	l.put("", "connectTimeout: two\n")
	bad := []string{"STATISCH", "connectTimeout"}
	l.expect("so is the mesh's configuration", "a 2s b 2s", true, bad...)
	written, err := os.Stat(l.lastGood)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		l.next()
		l.expect("they are bad still", "a 2s b 2s", true, bad...)
	}
	l.put("b.yaml", b+"# harmless\n")
	if err := l.server.Rescan(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := l.server.Reload(l.settings()); err != nil {
		t.Fatal(err)
	}
	if now, err := os.Stat(l.lastGood); err != nil || !os.SameFile(now, written) {
		t.Errorf("written anew though it is the same: %v", err)
	}

	l.put("", "connectTimeout: 3s\n")
	l.expect("the mesh's configuration is cured", "a 3s b 3s", true, "STATISCH")
	if err := os.Remove(filepath.Join(l.objects, "a.yaml")); err != nil {
		t.Fatal(err)
	}
	l.next()
	l.expect("the object is gone", "b 3s", false)

	l.put("", "connectTimeout: two\n")
	l.expect("bad once more", "b 3s", true, "connectTimeout")
	if err := l.server.Reload(discovery.Settings{}); err != nil {
		t.Fatal(err)
	}
	// Reload returns before the last-good file is removed
	eventually(t, "nothing is persisted", func() (bool, string) {
		_, err := os.Stat(l.lastGood)
		return os.IsNotExist(err), fmt.Sprint(err)
	})
	l.expect("without the mesh's configuration", "b 10s", false)
	if text := l.log.String(); strings.Contains(text, "level=WARN") {
		t.Error(text)
	}
}

// TestLastGood_UnusableFile: a server that cannot use the last-good file, because it is damaged or
// its objects are invalid, logs one warning and serves the objects that it can read.
func TestLastGood_UnusableFile(t *testing.T) {
	l := newRuns(t)
	l.put("b.yaml", fmt.Sprintf(webEntry, "b", "10.0.0.2"))
	l.put("", "connectTimeout: two\n")
	for _, test := range []struct{ name, text string }{
		{"damaged", "{"},
		{"of another version", `{"version":99}`},
		{"an object that is not valid",
			`{"version":1,"objects":[{"kind":"ServiceEntry","namespace":"shop","name":"a","file":"` +
				l.objects + `/a.yaml","spec":{"hosts":["a b"]}}]}`},
		{"a configuration of the mesh that is not valid",
			`{"version":1,"mesh":"Y29ubmVjdFRpbWVvdXQ6IHR3bwo="}`},
	} {
		write(t, l.lastGood, test.text)
		l.next()
		l.expect(test.name, "b 10s", false, "connectTimeout")
		if got := strings.Count(l.log.String(), "level=WARN"); got != 1 {
			t.Errorf("%s: %d warnings: %s", test.name, got, l.log.String())
		}
	}

	// A directory in place of the file can neither be read nor replaced.
	if err := os.MkdirAll(filepath.Join(l.lastGood, "full"), 0o755); err != nil {
		t.Fatal(err)
	}
	l.put("", "connectTimeout: 2s\n")
	l.next()
	l.expect("a folder", "b 2s", true)
	l.put("b.yaml", "a: [")
	l.expect("that cannot be written", "b 2s", true, "not valid YAML")
	if text := l.log.String(); !strings.Contains(text, "cannot persist last-good mesh config") {
		t.Error(text)
	}
}

// TestLastGood_LostBeforeThePathExists starts servers with a damaged last-good file while the
// configured path does not exist. As long as the path does not exist, each server records in the
// last-good file that the directories with policies are unknown.
func TestLastGood_LostBeforeThePathExists(t *testing.T) {
	l := newRuns(t)
	l.await = true
	l.put("", "{}\n")
	lost := func() bool {
		text, err := os.ReadFile(l.lastGood)
		return err == nil && strings.Contains(string(text), `"lost":true`)
	}
	if err := os.Remove(l.objects); err != nil {
		t.Fatal(err)
	}
	write(t, l.lastGood, "{")
	for range 3 {
		if l.next(); !lost() {
			t.Fatal("the file does not say that the directories were lost")
		}
	}
	l.end()
	l.server = nil
	if err := os.Mkdir(l.objects, 0o755); err != nil {
		t.Fatal(err)
	}
	l.put("b.yaml", fmt.Sprintf(webEntry, "b", "10.0.0.2"))
	if l.next(); lost() {
		t.Error("the file says that the directories were lost, and all are known")
	}
	l.expect("the path exists", "b 10s", false)
}

// TestLastGood_OtherFolder starts the next server with another directory in [discovery] files:
// objects of the previous directory are not in force.
func TestLastGood_OtherFolder(t *testing.T) {
	l := newRuns(t)
	l.put("", "connectTimeout: 2s\n")
	l.put("a.yaml", fmt.Sprintf(webEntry, "a", "10.0.0.1"))
	l.next()
	l.put("a.yaml", "a: [")
	l.expect("bad", "a 2s", true, "not valid YAML")
	l.objects = filepath.Join(filepath.Dir(l.objects), "elsewhere")
	if err := os.Mkdir(l.objects, 0o755); err != nil {
		t.Fatal(err)
	}
	l.next()
	l.expect("elsewhere", "", false)
}

// TestLastGood_MissingFolder removes the directory while no server runs: its objects stay in force.
func TestLastGood_MissingFolder(t *testing.T) {
	l := newRuns(t)
	l.put("", "connectTimeout: 2s\n")
	l.put("a.yaml", fmt.Sprintf(webEntry, "a", "10.0.0.1"))
	l.put("b.yaml", fmt.Sprintf(webEntry, "b", "10.0.0.2"))
	l.next()
	l.put("a.yaml", "a: [")
	l.expect("bad", "a 2s b 2s", true, "not valid YAML")
	l.end()
	l.server = nil
	away := l.objects + ".away"
	if err := os.Rename(l.objects, away); err != nil {
		t.Fatal(err)
	}
	const inForce = "restored last-good objects of previous run"
	for range 2 {
		l.next()
		l.expect("without the folder", "", true, "does not exist")
		if text := l.log.String(); strings.Contains(text, inForce) || !strings.Contains(text,
			"last-good objects not applied") {
			t.Error(text)
		}
	}
	l.end()
	l.server = nil
	if err := os.Rename(away, l.objects); err != nil {
		t.Fatal(err)
	}
	l.next()
	l.expect("with the folder", "a 2s b 2s", true, "not valid YAML")
	if text := l.log.String(); !strings.Contains(text, inForce) || strings.Contains(text,
		"last-good objects not applied") {
		t.Error(text)
	}
}

// TestLastGood_IsWrittenAgainAfterAFailure: last good versions that could not be written to a full
// disk are written once the disk has room, without a further change.
func TestLastGood_IsWrittenAgainAfterAFailure(t *testing.T) {
	directory := t.TempDir()
	files, folder := filepath.Join(directory, "mesh.d"), filepath.Join(directory, "state")
	if err := os.Mkdir(files, 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(files, "web.yaml")
	write(t, path, fmt.Sprintf(webEntry, "web", "10.0.0.1"))
	synctest.Test(t, func(t *testing.T) {
		server, changes := start(t, discovery.Options{Files: []string{files},
			LastGoodFile: filepath.Join(folder, "last-good.json")})
		write(t, path, fmt.Sprintf(webEntry, "web", "nonsense"))
		changes <- []string{path}
		changes <- nil // the server receives this once it has processed the previous change
		if len(server.Problems()) == 0 {
			t.Fatal("the object is valid")
		}
		if err := os.Mkdir(folder, 0o700); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if _, err := os.Stat(filepath.Join(folder, "last-good.json")); err != nil {
			t.Error(err)
		}
	})
}
