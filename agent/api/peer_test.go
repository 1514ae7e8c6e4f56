package api_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/api/apitest"
	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/scripts/parts"
)

// askAsAnotherUser runs in a copy of the test program as another user. It reads the status,
// requests a change, reads the configuration, compares files with it, and prints each exit code and
// error.
func askAsAnotherUser(socket string) {
	client := api.NewClient(socket)
	_, readErr := client.Status(context.Background())
	_, changeErr := client.Undrain(context.Background(), nil)
	_, showErr := client.Config(context.Background())
	_, diffErr := client.ConfigDiff(context.Background())
	_, compareErr := client.MeshCompare(context.Background(), api.MeshFiles{})
	fmt.Printf("%d %d %d %d %d\n%v\n%v\n", api.ExitCode(readErr), api.ExitCode(changeErr),
		api.ExitCode(showErr), api.ExitCode(diffErr), api.ExitCode(compareErr), changeErr, showErr)
}

// program is a copy of the test program that every user may execute.
func program(t *testing.T, dir string) string {
	t.Helper()
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "client")
	if err := os.WriteFile(path, self, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestWhoMayChange checks that root, the agent's user and members of the configured group may
// change the proxy and read the configuration, and that other users may only read the status. It
// needs root.
func TestWhoMayChange(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("tests of other users' requests must run as root")
	}
	const agent, group = 4711, 4712
	dir := parts.ShortDir(t)
	client := program(t, dir)
	backend := &apitest.Backend{}
	socket := apitest.ServeWith(t, api.Options{
		Socket: filepath.Join(dir, api.SocketName),
		Rule: api.AccessRule{UID: agent, Group: "outrider",
			LookupGroup: func(name string) (uint32, error) {
				if name != "outrider" {
					return 0, fmt.Errorf("asked for group %q", name)
				}
				return group, nil
			}},
		Backend: backend, Conditions: condition.NewRegistry(), Logger: slog.New(slog.DiscardHandler),
	})
	many := make([]uint32, 0, 300) // more groups than the first buffer for SO_PEERGROUPS holds
	for i := range 299 {
		many = append(many, uint32(10000+i))
	}
	tests := []struct {
		name       string
		credential syscall.Credential
		change     int
	}{
		{"root", syscall.Credential{}, api.ExitDone},
		{"the agent's own user", syscall.Credential{Uid: agent, Gid: 5}, api.ExitDone},
		{"primary group", syscall.Credential{Uid: 12345, Gid: group}, api.ExitDone},
		{"supplementary group",
			syscall.Credential{Uid: 12345, Gid: 12345, Groups: []uint32{7, group}}, api.ExitDone},
		{"the last of many groups",
			syscall.Credential{Uid: 12345, Gid: 12345, Groups: append(many, group)}, api.ExitDone},
		{"another user", syscall.Credential{Uid: 12345, Gid: 12345, Groups: []uint32{7}},
			api.ExitNotAuthorised},
		{"group root", syscall.Credential{Uid: 12345, Gid: 0, Groups: []uint32{0}},
			api.ExitNotAuthorised},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			command := exec.Command(client, "as-another-user", socket)
			command.SysProcAttr = &syscall.SysProcAttr{Credential: &test.credential}
			output, err := command.CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %s", err, output)
			}
			want := fmt.Sprintf("0 %d %d %d %d\n", test.change, test.change, test.change,
				test.change)
			if !strings.HasPrefix(string(output), want) {
				t.Errorf("want read, change, config, diff and comparison %s got %s", want, output)
			}
			const who = "root, the agent's own user and members of group outrider may"
			for _, does := range []string{"changes the proxy; ", "shows the configuration; "} {
				if test.change != 0 && !strings.Contains(string(output), does+who) {
					t.Errorf("the error does not say who may: %s", output)
				}
			}
		})
	}
}
