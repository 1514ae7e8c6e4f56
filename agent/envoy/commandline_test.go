package envoy

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"outrider.org/outrider/scripts/parts"
)

func full() CommandLine {
	return CommandLine{
		ConfigFile: "/run/envoy-rev1.json", RestartEpoch: 1, OutriderEpoch: 1, HotRestart: true, BaseID: 7,
		SocketPath: "/run/hr",
		DrainTime:  45 * time.Second, ParentShutdownTime: 60*time.Second + time.Millisecond,
		ServiceCluster: "istio-proxy", ServiceNode: "sidecar~10.0.0.1~a.b~b.svc",
		NodeIP:   netip.MustParseAddr("10.0.0.1"),
		LogLevel: "warning", ComponentLogLevel: "misc:error", Concurrency: 2, StatNameLength: 189,
		ExtraArgs: []string{"--cpuset-threads"},
	}
}

func TestArgs(t *testing.T) {
	old := &Binary{Flags: map[string]bool{"max-obj-name-len": true}}
	tests := map[string]struct {
		change func(*CommandLine)
		binary *Binary
		want   string
	}{
		"hot restart": {
			want: "-c /run/envoy-rev1.json --restart-epoch 1 --base-id 7 --socket-path /run/hr " +
				"--socket-mode 0600 --drain-time-s 45 --drain-strategy gradual --parent-shutdown-time-s 61 " +
				"--skip-hot-restart-parent-stats --service-cluster istio-proxy " +
				"--service-node sidecar~10.0.0.1~a.b~b.svc --local-address-ip-version v4 --log-format [Envoy " +
				"(Epoch 1)] [%Y-%m-%d %T.%e][%t][%l][%n] %v -l warning --component-log-level misc:error " +
				"--file-flush-interval-msec 1000 --concurrency 2 --cpuset-threads",
		},
		"side by side": {
			change: func(c *CommandLine) { c.HotRestart = false },
			want: "-c /run/envoy-rev1.json --restart-epoch 1 --disable-hot-restart --drain-time-s 45 " +
				"--drain-strategy gradual --service-cluster istio-proxy " +
				"--service-node sidecar~10.0.0.1~a.b~b.svc --local-address-ip-version v4 --log-format [Envoy " +
				"(Epoch 1)] [%Y-%m-%d %T.%e][%t][%l][%n] %v -l warning --component-log-level misc:error " +
				"--file-flush-interval-msec 1000 --concurrency 2 --cpuset-threads",
		},
		"an old Envoy": {
			binary: old,
			change: func(c *CommandLine) {
				c.SocketPath, c.ExtraArgs, c.NodeIP = "", nil, netip.MustParseAddr("fd00::1")
			},
			want: "-c /run/envoy-rev1.json --restart-epoch 1 --base-id 7 " +
				"--drain-time-s 45 --drain-strategy gradual --parent-shutdown-time-s 61 " +
				"--service-cluster istio-proxy --service-node sidecar~10.0.0.1~a.b~b.svc " +
				"--max-obj-name-len 189 --local-address-ip-version v6 " +
				"--log-format [Envoy (Epoch 1)] [%Y-%m-%d %T.%e][%t][%l][%n] %v -l warning " +
				"--component-log-level misc:error --concurrency 2",
		},
		"bare": {
			change: func(c *CommandLine) {
				*c = CommandLine{ConfigFile: "a.json", HotRestart: true}
			},
			want: "-c a.json --restart-epoch 0 --base-id 0 --drain-time-s 0 --drain-strategy gradual " +
				"--parent-shutdown-time-s 0 --skip-hot-restart-parent-stats --log-format [Envoy (Epoch 0)] " +
				"[%Y-%m-%d %T.%e][%t][%l][%n] %v --file-flush-interval-msec 1000",
		},
		"its own interval": {
			change: func(c *CommandLine) {
				*c = CommandLine{ConfigFile: "a.json", ExtraArgs: []string{"--file-flush-interval-msec=5"}}
			},
			want: "-c a.json --restart-epoch 0 --disable-hot-restart --drain-time-s 0 " +
				"--drain-strategy gradual --log-format [Envoy (Epoch 0)] " +
				"[%Y-%m-%d %T.%e][%t][%l][%n] %v --file-flush-interval-msec=5",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			command := full()
			if test.change != nil {
				test.change(&command)
			}
			if diff := cmp.Diff(test.want, strings.Join(command.Args(test.binary),
				" ")); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestValidateArgs(t *testing.T) {
	want := "--mode validate -c /run/envoy-rev1.json " +
		"--disable-hot-restart --service-cluster istio-proxy --service-node sidecar~10.0.0.1~a.b~b.svc " +
		"--local-address-ip-version v4 --log-format [Envoy (Epoch 1)] [%Y-%m-%d %T.%e][%t][%l][%n] %v " +
		"-l warning --component-log-level misc:error --concurrency 1 --cpuset-threads"
	if diff := cmp.Diff(want, strings.Join(full().ValidateArgs(nil), " ")); diff != "" {
		t.Error(diff)
	}
}

func TestSecondsAreRoundedUp(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0", -time.Second: "0", time.Nanosecond: "1", time.Second: "1",
		1500 * time.Millisecond: "2", time.Hour: "3600",
	} {
		if got := seconds(d); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
}

// The pinned Envoy knows every flag that is passed to it.
func TestOwnFlagsAreEnvoys(t *testing.T) {
	binary, err := Inspect(t.Context(), LocalRunner{}, parts.EnvoyPath(t))
	if err != nil {
		t.Fatal(err)
	}
	command := full()
	for _, args := range [][]string{command.Args(binary), command.ValidateArgs(binary)} {
		for _, arg := range args {
			if name, ok := strings.CutPrefix(arg, "--"); ok && !binary.Flags[name] {
				t.Errorf("%s is not a flag of Envoy %s", arg, binary.Version)
			}
		}
	}
}

// An epoch takes over the listeners of its parent, which then exits by itself.
func TestHotRestartOfARealEnvoy(t *testing.T) {
	sockets := parts.ShortDir(t)
	first := start(t, CommandLine{
		HotRestart: true, BaseID: 20000 + uint32(os.Getpid()%10000),
		SocketPath: filepath.Join(sockets, "hr"),
		DrainTime:  time.Second, ParentShutdownTime: time.Second,
	})
	t.Cleanup(func() {
		_ = os.Remove(fmt.Sprintf("/dev/shm/envoy_shared_memory_%d", first.command.BaseID*10))
	})
	second := first.next(t)
	if number, err := second.RestartEpoch(t.Context()); err != nil || number != 1 {
		t.Errorf("restart epoch %d, %v", number, err)
	}
	found, err := filepath.Glob(filepath.Join(sockets, "hr*"))
	if err != nil || len(found) == 0 {
		t.Fatalf("no hot-restart sockets: %v", err)
	}
	for _, path := range found {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", path, info.Mode(), err)
		}
	}
	select {
	case <-first.exited:
	case <-time.After(10 * time.Second):
		t.Fatal("the first epoch does not exit")
	}
	if ready, state, err := second.Ready(t.Context()); !ready || err != nil {
		t.Errorf("the second epoch: %s, %v", state, err)
	}
	for _, said := range []string{first.log.String(), second.log.String()} {
		if strings.Contains(said, "[error]") || strings.Contains(said, "[critical]") {
			t.Errorf("Envoy said:\n%s", said)
		}
	}
}

func TestValidateWithARealEnvoy(t *testing.T) {
	command := CommandLine{ConfigFile: "/nonesuch.json", ServiceNode: "a", ServiceCluster: "b"}
	_, stderr, exit, err := LocalRunner{}.Run(t.Context(), parts.EnvoyPath(t),
		command.ValidateArgs(nil))
	if err != nil || exit != 1 {
		t.Fatalf("exit %d, %v", exit, err)
	}
	if why := ExplainExit(exit, "", false, lines(string(stderr))); !strings.Contains(why,
		"/nonesuch.json") {
		t.Errorf("%s\nof\n%s", why, stderr)
	}
}

func TestUnknownArguments(t *testing.T) {
	binary := &Binary{Flags: map[string]bool{"stats-tag": true, "cpuset-threads": true}}
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, ""},
		{[]string{"--stats-tag", "a:b", "--cpuset-threads"}, ""},
		{[]string{"--stats-tag=a:b", "--nonsense=3"}, "--nonsense"},
		{[]string{"--stats-tag", "--value"}, ""},
		{[]string{"--stats-tag", "a:b", "--nonsense"}, "--nonsense"},
	} {
		if got := binary.UnknownFlag(c.args); got != c.want {
			t.Errorf("%q: %q, want %q", c.args, got, c.want)
		}
	}
}
