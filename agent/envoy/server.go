package envoy

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"strconv"
	"time"
)

// The states of ServerInfo.
const (
	StateLive            = "LIVE"
	StateDraining        = "DRAINING"
	StatePreInitializing = "PRE_INITIALIZING"
	StateInitializing    = "INITIALIZING"
)

// ServerInfo is the part of /server_info that Outrider uses.
type ServerInfo struct {
	Version           string // as in --version
	State             string // one of the State constants
	HotRestartVersion string // "disabled" if started without hot restart
	RestartEpoch      int
	Uptime            time.Duration // of this epoch, in whole seconds
}

// ServerInfo requests state, epoch and version. The answer has about 150 KB; use Ready to poll the
// state.
func (a *Admin) ServerInfo(ctx context.Context) (ServerInfo, error) {
	var answer struct {
		Version           string `json:"version"`
		State             string `json:"state"`
		HotRestartVersion string `json:"hot_restart_version"`
		Uptime            string `json:"uptime_current_epoch"`
		Options           struct {
			RestartEpoch int `json:"restart_epoch"`
		} `json:"command_line_options"`
	}
	if err := a.getJSON(ctx, "/server_info", &answer); err != nil {
		return ServerInfo{}, err
	}
	uptime, err := time.ParseDuration(answer.Uptime)
	if err != nil {
		return ServerInfo{}, fmt.Errorf("/server_info of %s: uptime: %w", a, err)
	}
	return ServerInfo{
		Version: answer.Version, State: answer.State, HotRestartVersion: answer.HotRestartVersion,
		RestartEpoch: answer.Options.RestartEpoch, Uptime: uptime,
	}, nil
}

// Listener is a listener with its bound addresses.
type Listener struct {
	Name      string   // a UUID if the configuration has none
	Addresses []string // host:port, or the path of a Unix socket
}

// Listeners returns the active listeners.
func (a *Admin) Listeners(ctx context.Context) ([]Listener, error) {
	type address struct {
		Socket *struct {
			Address string `json:"address"`
			Port    int    `json:"port_value"`
		} `json:"socket_address"`
		Pipe *struct {
			Path string `json:"path"`
		} `json:"pipe"`
	}
	var answer struct {
		Statuses []struct {
			Name       string    `json:"name"`
			Local      address   `json:"local_address"`
			Additional []address `json:"additional_local_addresses"`
		} `json:"listener_statuses"`
	}
	if err := a.getJSON(ctx, "/listeners?format=json", &answer); err != nil {
		return nil, err
	}
	listeners := make([]Listener, 0, len(answer.Statuses))
	for _, status := range answer.Statuses {
		listener := Listener{Name: status.Name}
		for _, address := range append([]address{status.Local}, status.Additional...) {
			switch {
			case address.Socket != nil:
				port := strconv.Itoa(address.Socket.Port)
				listener.Addresses = append(listener.Addresses,
					net.JoinHostPort(address.Socket.Address, port))
			case address.Pipe != nil:
				listener.Addresses = append(listener.Addresses, address.Pipe.Path)
			}
		}
		listeners = append(listeners, listener)
	}
	return listeners, nil
}

// MemoryBytes returns the physical memory that Envoy's allocator holds.
func (a *Admin) MemoryBytes(ctx context.Context) (uint64, error) {
	var answer struct {
		Physical  uint64 `json:"total_physical_bytes,string"`
		Heap      uint64 `json:"heap_size,string"`
		Allocated uint64 `json:"allocated,string"`
	}
	if err := a.getJSON(ctx, "/memory", &answer); err != nil {
		return 0, err
	}
	for _, bytes := range []uint64{answer.Physical, answer.Heap, answer.Allocated} {
		if bytes > 0 { // allocators other than tcmalloc leave some of them at 0
			return bytes, nil
		}
	}
	return 0, nil
}

func (a *Admin) getJSON(ctx context.Context, path string, answer any) error {
	body, err := a.Get(ctx, path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, answer); err != nil {
		return fmt.Errorf("%s of %s: %w", path, a, err)
	}
	return nil
}
