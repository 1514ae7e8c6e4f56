package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/rig"
)

// static returns a bootstrap equivalent to the configuration of an epoch: the epoch's own
// bootstrap, with the resources from ADS as static resources. With move, its listeners use other
// ports, so that an Envoy with this bootstrap can run beside the epoch.
func static(t *stage, r *rig.Rig, move bool) map[string]any {
	t.Helper()
	answer, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/config_dump?include_eds",
		r.Ports.Admin))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	var dump struct{ Configs []map[string]any }
	if err := json.NewDecoder(answer.Body).Decode(&dump); err != nil {
		t.Fatalf("config_dump: %s: %v", answer.Status, err)
	}
	var bootstrap map[string]any
	var listeners, clusters []any
	routes, endpoints := map[string]any{}, map[string]any{}
	for _, config := range dump.Configs {
		switch kind, _ := config["@type"].(string); kind[strings.LastIndexByte(kind, '.')+1:] {
		case "BootstrapConfigDump":
			bootstrap = config["bootstrap"].(map[string]any)
		case "ListenersConfigDump":
			for _, one := range list(config["dynamic_listeners"]) {
				active, _ := one["active_state"].(map[string]any)
				listeners = append(listeners, resource(active, "listener"))
			}
		case "ClustersConfigDump":
			for _, one := range list(config["dynamic_active_clusters"]) {
				clusters = append(clusters, resource(one, "cluster"))
			}
		case "RoutesConfigDump":
			for _, one := range list(config["dynamic_route_configs"]) {
				route := resource(one, "route_config")
				routes[route["name"].(string)] = route
			}
		case "EndpointsConfigDump":
			for _, one := range append(list(config["dynamic_endpoint_configs"]),
				list(config["static_endpoint_configs"])...) {
				endpoint := resource(one, "endpoint_config")
				for _, locality := range list(endpoint["endpoints"]) {
					// Envoy's dump contains this value, but Envoy refuses it in a configuration.
					if locality["load_balancing_weight"] == float64(0) {
						delete(locality, "load_balancing_weight")
					}
				}
				endpoints[fmt.Sprint(endpoint["cluster_name"])] = endpoint
			}
		}
	}
	for _, one := range clusters {
		cluster := one.(map[string]any)
		if cluster["type"] == "EDS" {
			cluster["type"] = "STATIC"
			name := fmt.Sprint(cluster["name"])
			if settings, ok := cluster["eds_cluster_config"].(map[string]any); ok &&
				settings["service_name"] != nil {
				name = fmt.Sprint(settings["service_name"])
			}
			delete(cluster, "eds_cluster_config")
			if assignment, ok := endpoints[name]; ok {
				cluster["load_assignment"] = assignment
			}
		}
	}
	inline(listeners, routes)
	resources := bootstrap["static_resources"].(map[string]any)
	delete(bootstrap, "dynamic_resources")
	delete(bootstrap, "hds_config")
	resources["listeners"] = append(anys(resources["listeners"]), listeners...)
	resources["clusters"] = append(anys(resources["clusters"]), clusters...)
	if move {
		movePorts(t, resources["listeners"])
	}
	if len(listeners) == 0 || len(clusters) == 0 {
		t.Fatalf("config_dump has %d listeners and %d clusters", len(listeners), len(clusters))
	}
	return bootstrap
}

func anys(value any) []any {
	all, _ := value.([]any)
	return all
}

func list(value any) []map[string]any {
	var all []map[string]any
	for _, one := range anys(value) {
		if object, ok := one.(map[string]any); ok {
			all = append(all, object)
		}
	}
	return all
}

// resource returns the resource in a wrapper of a dump, without its type.
func resource(wrapper map[string]any, key string) map[string]any {
	found, _ := wrapper[key].(map[string]any)
	delete(found, "@type")
	return found
}

// inline replaces RDS by inline route configurations.
func inline(value any, routes map[string]any) {
	switch value := value.(type) {
	case []any:
		for _, one := range value {
			inline(one, routes)
		}
	case map[string]any:
		if rds, ok := value["rds"].(map[string]any); ok {
			value["route_config"] = routes[fmt.Sprint(rds["route_config_name"])]
			delete(value, "rds")
		}
		for _, one := range value {
			inline(one, routes)
		}
	}
}

// movePorts gives each listener another port. Addresses in filters remain unchanged.
func movePorts(t *stage, listeners any) {
	for _, listener := range list(listeners) {
		address, _ := listener["address"].(map[string]any)
		if socket, ok := address["socket_address"].(map[string]any); ok &&
			socket["port_value"] != nil {
			socket["port_value"] = parts.FreePort(t)
		}
	}
}

// alone is an Envoy without an agent.
type alone struct {
	process *os.Process
	admin   string
	took    time.Duration // from exec to ready
	done    chan struct{}
}

// startAlone starts an Envoy in a directory of its own and waits until it is ready. An epoch above
// 0 is a hot restart of the previous one with the same base ID.
func startAlone(t *stage, folder string, bootstrap map[string]any, baseID, epoch int, drain,
	shutdown time.Duration) *alone {
	t.Helper()
	a := &alone{admin: filepath.Join(folder, fmt.Sprintf("admin-%d.sock", epoch)),
		done: make(chan struct{})}
	bootstrap["admin"] = map[string]any{"address": map[string]any{
		"pipe": map[string]any{"path": a.admin}}}
	text, err := json.Marshal(bootstrap)
	file := filepath.Join(folder, fmt.Sprintf("envoy-%d.json", epoch))
	if err == nil {
		err = os.WriteFile(file, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	command := exec.Command(parts.EnvoyPath(t), "-c", file, "--concurrency", "2", "--log-level",
		"warning", "--base-id", strconv.Itoa(baseID),
		"--restart-epoch", strconv.Itoa(epoch), "--skip-hot-restart-parent-stats",
		"--drain-time-s", strconv.Itoa(int(drain/time.Second)), "--parent-shutdown-time-s",
		strconv.Itoa(int(shutdown/time.Second)))
	command.Stderr = &log
	begun := time.Now()
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	a.process = command.Process
	go func() { _ = command.Wait(); close(a.done) }()
	t.Cleanup(a.kill)
	client := &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", a.admin)
		}}}
	for !ready(client, "http://envoy/ready") {
		select {
		case <-a.done:
			t.Fatalf("Envoy alone ended: %s", log.String())
		default:
		}
		if time.Since(begun) > 30*time.Second {
			t.Fatalf("Envoy alone is not ready after %v", time.Since(begun))
		}
		time.Sleep(readyPoll)
	}
	a.took = time.Since(begun)
	return a
}

// ready reports whether a GET returns 200.
func ready(client *http.Client, address string) bool {
	answer, err := client.Get(address)
	if err != nil {
		return false
	}
	_, _ = io.Copy(io.Discard, answer.Body)
	_ = answer.Body.Close()
	return answer.StatusCode == http.StatusOK
}

// readyPoll is the poll interval for readiness.
const readyPoll = 2 * time.Millisecond

// stop stops the Envoy as systemd does: it sends SIGTERM, then waits.
func (a *alone) stop() {
	_ = a.process.Signal(syscall.SIGTERM)
	select {
	case <-a.done:
	case <-time.After(10 * time.Second):
		a.kill()
	}
}

func (a *alone) kill() {
	select {
	case <-a.done:
	default:
		_ = a.process.Kill()
		<-a.done
	}
}

// removeSharedMemory removes the shared memory of a base ID.
func removeSharedMemory(baseID int) {
	_ = os.Remove(fmt.Sprintf("/dev/shm/envoy_shared_memory_%d", baseID*10))
}
