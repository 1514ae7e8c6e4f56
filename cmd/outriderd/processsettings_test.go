package main_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/rig"
)

// settingsRig returns a test host whose MeshConfig, instead of [envoy] concurrency, sets the number
// of workers.
func settingsRig(t *testing.T, options rig.Options) *rig.Rig {
	t.Helper()
	r := rig.New(t, options)
	file := filepath.Join(r.Dir, "outrider.toml")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	r.WriteFile("mesh.yaml", "defaultConfig: {concurrency: 1, proxyMetadata: {FROM: mesh}}\n")
	r.WriteFile("outrider.toml", strings.NewReplacer("concurrency = 2\n", "", "[discovery]\n",
		fmt.Sprintf("[discovery]\nmesh_config_file = %q\n", filepath.Join(r.Dir, "mesh.yaml"))).
		Replace(string(text)))
	return r
}

// runs waits until the live Envoy has a number of worker threads, and its environment the given
// variables. "A=b" is a variable with its value; "-A" a variable that must be absent.
func runs(t *testing.T, r *rig.Rig, workers int, environment ...string) {
	t.Helper()
	seen := ""
	for range 2 { // check twice: the first live epoch may be about to end
		rig.Eventually(t, time.Minute, fmt.Sprintf("Envoy has %d workers and %v", workers,
			environment), func() bool {
			pid := r.LiveEpoch().PID
			threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/comm", pid))
			text, readErr := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
			if err != nil || readErr != nil {
				return false
			}
			n := 0
			for _, thread := range threads {
				name, _ := os.ReadFile(thread)
				if strings.HasPrefix(string(name), "wrk:worker") {
					n++
				}
			}
			has := strings.Split(string(text), "\x00")
			seen = fmt.Sprint(n, has)
			for _, variable := range environment {
				name, absent := strings.CutPrefix(variable, "-")
				if absent == slices.Contains(has, variable) || absent && slices.ContainsFunc(has,
					func(v string) bool { return strings.HasPrefix(v, name+"=") }) {
					return false
				}
			}
			return n == workers
		})
	}
	t.Log(seen)
}

// proxyConfig returns a ProxyConfig for all proxies in the namespace of the test host.
func proxyConfig(spec string) string {
	return "apiVersion: networking.istio.io/v1beta1\nkind: ProxyConfig\nmetadata: {name: p}\n" +
		"spec: {" + spec + "}\n"
}

// TestProcessSettings_ChangeUnderLoad changes the number of workers and the environment of Envoy
// through mesh files, which starts epochs. No request is lost. An invalid change starts no epoch.
func TestProcessSettings_ChangeUnderLoad(t *testing.T) {
	t.Parallel()
	const short = "[envoy]\ndrain_duration = \"1s\"\nparent_shutdown_duration = \"3s\"\n"
	r := settingsRig(t, rig.Options{TOML: short})
	r.StartReady()
	runs(t, r, 1, "FROM=mesh")
	load := r.StartLoad(0.2)

	r.WriteFile("mesh.d/proxy.yaml", proxyConfig("concurrency: 3, environmentVariables: {A: b}"))
	runs(t, r, 3, "FROM=mesh", "A=b")

	before := r.LiveEpoch().PID
	r.WriteFile("mesh.d/proxy.yaml", proxyConfig("concurrency: 2, environmentVariables: "+
		"{LD_PRELOAD: /x}"))
	told := r.RunOutrider("mesh", "check")
	if want := `proxy.yaml:4: ProxyConfig default/p: spec.environmentVariables["LD_PRELOAD"]: `; told.
		ExitCode != api.ExitRefused || !strings.Contains(told.Stderr, want) {
		t.Errorf("mesh check: exit %d: %s%s; want %s", told.ExitCode, told.Stdout, told.Stderr, want)
	}
	if got := r.LiveEpoch().PID; got != before {
		t.Error("another epoch is live after an invalid ProxyConfig")
	}
	runs(t, r, 3, "A=b", "-LD_PRELOAD")
	told = r.RunOutrider("mesh", "explain", fmt.Sprintf("http://web.test:%d/", r.Ports.HTTP))
	if !strings.Contains(told.Stdout, "3 workers") || !strings.Contains(told.Stdout, "proxy.yaml:") {
		t.Errorf("mesh explain: %s%s", told.Stdout, told.Stderr)
	}

	// A reload reads all files, even if the watcher has not reported the last change yet.
	r.WriteFile("mesh.d/proxy.yaml", proxyConfig("concurrency: 4, environmentVariables: {A: c}"))
	if told := r.RunOutrider("reload"); told.ExitCode != 0 {
		t.Errorf("reload: exit %d: %s%s", told.ExitCode, told.Stdout, told.Stderr)
	}
	runs(t, r, 4, "A=c", "FROM=mesh")

	// The next epoch cannot start, because Envoy refuses the bootstrap: nothing changes.
	r.SetTOML(short + fmt.Sprintf("bootstrap_override = %q\n", badBootstrap(r)))
	r.WriteFile("mesh.d/proxy.yaml", proxyConfig("concurrency: 5, environmentVariables: {A: d}"))
	if told := r.RunOutrider("reload"); told.ExitCode != api.ExitRefused {
		t.Errorf("a bad reload: exit %d: %s%s", told.ExitCode, told.Stdout, told.Stderr)
	}
	runs(t, r, 4, "A=c")
	r.SetTOML(short)
	runs(t, r, 5, "A=d")

	// [envoy] concurrency has precedence over ProxyConfig.
	r.WriteFile("mesh.d/proxy.yaml", proxyConfig("concurrency: 6, environmentVariables: {A: e}"))
	r.SetTOML(short + "concurrency = 6\n")
	runs(t, r, 6, "A=e")
	r.WriteFile("mesh.yaml", "defaultConfig: {proxyMetadata: {FROM: file}}\n")
	r.WriteFile("mesh.d/proxy.yaml", "# none\n")
	runs(t, r, 6, "FROM=file", "-A")
	if report := load.Stop(); report.Lost > 0 {
		t.Errorf("lost %d of %d:\n%v", report.Lost, report.Total, report)
	}
}

// TestProcessSettings_FewerWorkersLoseNothing reduces the number of workers under load, with the
// sysctl settings of the package. With these, the kernel moves the connections that a removed
// worker has not accepted yet to the remaining workers.
func TestProcessSettings_FewerWorkersLoseNothing(t *testing.T) {
	t.Parallel()
	if !parts.RerunInOwnNetwork(t) {
		return
	}
	text, err := os.ReadFile("../../packaging/sysctl.d/60-outrider.conf")
	if err != nil {
		t.Fatal(err)
	}
	const setting = "net.ipv4.tcp_migrate_req = 1"
	if !strings.Contains(string(text), "\n-"+setting+"\n") {
		t.Fatalf("no %s in %s", setting, text)
	}
	if err := os.WriteFile("/proc/sys/net/ipv4/tcp_migrate_req", []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	r := settingsRig(t, rig.Options{TOML: "[envoy]\ndrain_duration = \"1s\"\n" +
		"parent_shutdown_duration = \"2s\"\n"})
	r.StartReady()
	load := r.StartLoad(1)
	for _, workers := range []int{8, 1, 8, 1} {
		r.WriteFile("mesh.d/proxy.yaml", proxyConfig(fmt.Sprintf("concurrency: %d", workers)))
		runs(t, r, workers)
	}
	if report := load.Stop(); report.Lost > 0 {
		t.Errorf("lost %d of %d:\n%v", report.Lost, report.Total, report)
	} else {
		t.Logf("lost none of %d", report.Total)
	}
}
