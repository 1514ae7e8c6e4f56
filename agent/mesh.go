package agent

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/blueprint"
	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/watch"
)

// meshDebounce lets the events of one change arrive; the quiet time before a push is the discovery server's own
// (discovery.debounce_after).
const meshDebounce = time.Millisecond

// lastGoodName is the file in the state directory with the last good versions of bad objects.
const lastGoodName = "mesh-last-good.json"

// meshSuffixes are the files that the discovery server reads in a folder.
var meshSuffixes = []string{".yaml", ".yml", ".json"}

// meshWatch watches what the embedded discovery server reads, and the certificates that its objects have Envoy read.
type meshWatch struct {
	*watch.Watcher
	mu                 sync.Mutex
	mesh, certificates []string
}

func newMeshWatch(c *config.Config, log *slog.Logger) (*meshWatch, error) {
	m := &meshWatch{Watcher: watch.New(watch.Options{
		Debounce: func() time.Duration { return meshDebounce },
		MaxDelay: func() time.Duration { return meshDebounce },
		Suffixes: meshSuffixes,
		Access:   true, // Envoy may be of another user than the agent, and reads the certificates
		Logger:   log,
	})}
	if err := m.setMesh(meshPaths(c)); err != nil {
		return nil, fmt.Errorf("watch discovery.files: %w", err)
	}
	return m, nil
}

// setMesh makes paths those that are read.
func (m *meshWatch) setMesh(paths []string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mesh = paths
	return m.Set(slices.Concat(m.mesh, m.certificates))
}

// setCertificates makes files those that Envoy reads.
func (m *meshWatch) setCertificates(files []string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.certificates = files
	return m.Set(slices.Concat(m.mesh, m.certificates))
}

// meshPaths are what the discovery server reads: a folder with all below it, of a file just the file. What the agent reads itself has not
// changed when only its mode or owner has (watch.Options.Access).
func meshPaths(c *config.Config) []string {
	var paths []string
	for _, path := range c.Discovery.Files {
		paths = append(paths, path+"/...")
	}
	if c.Discovery.MeshConfigFile != "" {
		paths = append(paths, c.Discovery.MeshConfigFile+"/...")
	}
	return paths
}

// discoveryOptions are the embedded server's part of a configuration.
func (a *Agent) discoveryOptions(c *config.Config) discovery.Options {
	return discovery.Options{
		Files: c.Discovery.Files, OwnAddresses: true, Changes: a.meshWatch.Changes(), Watch: a.meshWatch.setCertificates, Settings: meshSettings(c),
		Denied:   a.deniedToEnvoy,
		LastGood: filepath.Join(c.Paths.StateDir, lastGoodName), Board: a.board, Logger: a.logOf("discovery"),
	}
}

// deniedToEnvoy says why Envoy cannot read a file, see blueprint.Reader.
func (a *Agent) deniedToEnvoy(path string) string {
	keeper := a.keeper.get()
	if keeper == nil {
		return ""
	}
	info := keeper.Info()
	groups := []string{strconv.Itoa(info.GID)}
	for _, gid := range info.Groups {
		groups = append(groups, strconv.Itoa(gid))
	}
	return blueprint.LookupReader(strconv.Itoa(info.UID), groups...).Denied(path)
}

// meshSettings are its [live] keys, and what of an epoch's is its too.
func meshSettings(c *config.Config) discovery.Settings {
	return discovery.Settings{
		Namespace:      c.Node.Namespace,
		MeshConfigFile: c.Discovery.MeshConfigFile,
		Taken:          takenByAgent(c),
		DebounceAfter:  c.Discovery.DebounceAfter, DebounceMax: c.Discovery.DebounceMax,
		AccessLog: discovery.AccessLog{File: c.Telemetry.AccessLogFile, Format: c.Telemetry.AccessLogFormat},
	}
}

// takenByAgent is where the agent listens, and the bootstrap that it makes.
func takenByAgent(c *config.Config) []discovery.Taken {
	var taken []discovery.Taken
	for _, claim := range c.Claims() {
		if claim.Port != 0 {
			taken = append(taken, discovery.Taken{Address: claim.Host, Port: uint32(claim.Port), By: claim.Setting() + " of the agent", Envoy: claim.Envoy})
		}
	}
	return taken
}

// discoveryStatus says where the proxy's configuration comes from.
func (b backend) discoveryStatus(problems []discovery.Problem) api.Discovery {
	var errors, warnings int
	for _, p := range problems {
		switch p.Severity {
		case condition.Error:
			errors++
		case condition.Warning:
			warnings++
		}
	}
	detail := strings.Join(slices.DeleteFunc([]string{counted(errors, "error"), counted(warnings, "warning")}, func(s string) bool { return s == "" }), ", ")
	if detail != "" {
		detail += "; run \"outrider mesh check\" for details"
	}
	return api.Discovery{State: "embedded", Since: b.started, Detail: detail}
}

// counted is a number with its noun, "" of 0.
func counted(n int, noun string) string {
	switch n {
	case 0:
		return ""
	case 1:
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
