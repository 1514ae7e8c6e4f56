package envoy

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// DrainStrategy says how connections are asked to close while an epoch drains.
type DrainStrategy string

// The strategies. Gradual spreads the closes over the drain time; measured over hot restarts it
// loses nothing, while Immediate makes some clients reuse a connection that was told to go.
const (
	Gradual   DrainStrategy = "gradual"
	Immediate DrainStrategy = "immediate"
)

// CommandLine is what one epoch of Envoy is started with.
type CommandLine struct {
	ConfigFile string // -c; Envoy tells JSON from YAML by its ending
	Epoch      int    // --restart-epoch
	// in every log line: the epoch as people count it, whatever Envoys it takes over from
	Number int

	// HotRestart makes the epoch one that takes over from its parent and hands over to its child.
	// Without it the epoch shares nothing with any other (side by side) and BaseID, SocketPath and
	// ParentShutdownTime do not count.
	HotRestart bool
	BaseID     uint32 // --base-id; the shared memory is /dev/shm/envoy_shared_memory_<10 × BaseID>
	// --socket-path: prefix of the hot-restart sockets' paths; "" = abstract sockets, open to every
	// local user
	SocketPath string

	DrainTime          time.Duration // --drain-time-s
	DrainStrategy      DrainStrategy // "" = Gradual
	ParentShutdownTime time.Duration // --parent-shutdown-time-s

	ServiceCluster string
	ServiceNode    string
	// its family is --local-address-ip-version; the zero Addr omits the flag
	NodeIP netip.Addr

	LogLevel          string // -l; "" = Envoy's default
	ComponentLogLevel string // "upstream:debug,misc:error"; "" omits the flag
	Concurrency       int    // worker threads; 0 = Envoy's choice, one per core
	StatNameLength    int    // --max-obj-name-len, only for an Envoy that lists it; 0 omits it
	ExtraArgs         []string
}

// socketMode makes the hot-restart sockets Envoy's own: whoever may write to them may end or take
// over an epoch.
const socketMode = "0600"

// Args returns the arguments for the given binary, which decides about flags that only some Envoys
// know. A nil binary, or one without flags, stands for an Envoy of today.
func (c CommandLine) Args(binary *Binary) []string {
	args := []string{"-c", c.ConfigFile, "--restart-epoch", strconv.Itoa(c.Epoch)}
	if c.HotRestart {
		args = append(args, "--base-id", strconv.FormatUint(uint64(c.BaseID), 10))
		if c.SocketPath != "" {
			args = append(args, "--socket-path", c.SocketPath, "--socket-mode", socketMode)
		}
	} else {
		args = append(args, "--disable-hot-restart")
	}
	strategy := c.DrainStrategy
	if strategy == "" {
		strategy = Gradual
	}
	args = append(args, "--drain-time-s", seconds(c.DrainTime), "--drain-strategy", string(strategy))
	if c.HotRestart {
		args = append(args, "--parent-shutdown-time-s", seconds(c.ParentShutdownTime))
		if binary.knows("skip-hot-restart-parent-stats") {
			// Merging a parent's statistics blocks the child's main thread for as long as the
			// parent hangs.
			args = append(args, "--skip-hot-restart-parent-stats")
		}
	}
	args = append(args, c.common(binary)...)
	if c.Concurrency > 0 {
		args = append(args, "--concurrency", strconv.Itoa(c.Concurrency))
	}
	return append(args, c.ExtraArgs...)
}

// ValidateArgs returns the arguments of a run that checks the configuration file and exits.
func (c CommandLine) ValidateArgs(binary *Binary) []string {
	args := []string{"--mode", "validate", "-c", c.ConfigFile, "--disable-hot-restart"}
	args = append(args, c.common(binary)...)
	args = append(args, "--concurrency", "1") // nothing is served: one worker is the fastest
	return append(args, c.ExtraArgs...)
}

// common is what serving and validating share: the node and the logs.
func (c CommandLine) common(binary *Binary) []string {
	var args []string
	if c.ServiceCluster != "" {
		args = append(args, "--service-cluster", c.ServiceCluster)
	}
	if c.ServiceNode != "" {
		args = append(args, "--service-node", c.ServiceNode)
	}
	if c.StatNameLength > 0 && binary.lists("max-obj-name-len") {
		args = append(args, "--max-obj-name-len", strconv.Itoa(c.StatNameLength))
	}
	if c.NodeIP.IsValid() {
		version := "v4"
		if c.NodeIP.Is6() && !c.NodeIP.Is4In6() {
			version = "v6"
		}
		args = append(args, "--local-address-ip-version", version)
	}
	args = append(args, "--log-format", LogFormat(c.Number))
	if c.LogLevel != "" {
		args = append(args, "-l", c.LogLevel)
	}
	if c.ComponentLogLevel != "" {
		args = append(args, "--component-log-level", c.ComponentLogLevel)
	}
	return args
}

// knows tells whether the binary has a flag that every Envoy of today has.
func (b *Binary) knows(flag string) bool { return b == nil || b.Flags == nil || b.Flags[flag] }

// lists tells whether the binary has a flag that is gone from the Envoy of today.
func (b *Binary) lists(flag string) bool { return b != nil && b.Flags[flag] }

// KnowsStatNameLength tells whether the binary takes --max-obj-name-len at all.
func (b *Binary) KnowsStatNameLength() bool { return b.lists("max-obj-name-len") }

// Unknown returns the first of further arguments that is a long flag the binary does not list, ""
// if there is none. An argument after a flag may be the flag's value and passes.
func (b *Binary) Unknown(args []string) string {
	value := false
	for _, arg := range args {
		name, isLong := strings.CutPrefix(arg, "--")
		name, _, hasValue := strings.Cut(name, "=")
		if isLong && !value && !b.knows(name) {
			return "--" + name
		}
		value = !value && strings.HasPrefix(arg, "-") && !hasValue
	}
	return ""
}

// seconds is d in Envoy's granularity, rounded up: a drain of 1.2 s asked for must not become one
// of 1 s.
func seconds(d time.Duration) string {
	return strconv.FormatInt(int64((max(d, 0)+time.Second-1)/time.Second), 10)
}

// ownFlags are the flags that Args sets, or that would take an epoch out of the agent's hands.
var ownFlags = []string{
	"c", "config-path", "restart-epoch", "base-id", "use-dynamic-base-id", "base-id-path", "disable-hot-restart",
	"socket-path", "socket-mode", "drain-time-s", "drain-strategy", "parent-shutdown-time-s",
	"skip-hot-restart-parent-stats", "skip-hot-restart-on-no-parent", "service-cluster", "service-node",
	"max-obj-name-len", "local-address-ip-version", "log-format", "log-format-escaped", "log-path", "l", "log-level",
	"component-log-level", "concurrency", "mode", "version", "hot-restart-version", "help", "h", "config-yaml",
	"admin-address-path", "enable-fine-grain-logging",
}

// CheckExtraArgs refuses arguments that the agent itself passes, which Envoy would take as given
// twice.
func CheckExtraArgs(args []string) error {
	for _, arg := range args {
		if arg == "--" || arg == "--ignore_rest" {
			return fmt.Errorf("%q would hide the agent's own arguments from Envoy; leave it out", arg)
		}
		name, isFlag := strings.CutPrefix(arg, "-")
		if !isFlag {
			continue
		}
		name, _, _ = strings.Cut(strings.TrimPrefix(name, "-"), "=")
		if slices.Contains(ownFlags, name) {
			return fmt.Errorf("%q is passed by the agent itself; use the key of [envoy] that stands for it", arg)
		}
	}
	return nil
}
