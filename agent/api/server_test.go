package api_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/api/apitest"
	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/scripts/parts"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "as-another-user" {
		askAsAnotherUser(os.Args[2])
		return
	}
	goleak.VerifyTestMain(m)
}

func serve(t *testing.T, backend *apitest.Backend) (*api.Client, *condition.Registry) {
	t.Helper()
	board := condition.NewRegistry()
	client := api.NewClient(apitest.Serve(t, parts.ShortDir(t), backend, board))
	t.Cleanup(client.Close)
	return client, board
}

func number(n int) *int { return &n }

func TestStatusArrivesAsItWasGiven(t *testing.T) {
	want := api.Status{Version: "1.2.3", PID: 7, State: api.StateRunning, Ready: true,
		CurrentEpoch: number(3),
		Epochs: []api.Epoch{{Number: 3, State: api.EpochLive, PID: 8,
			Started: time.Unix(100, 0).UTC(), MemoryBytes: 5}},
		Identities: []api.Identity{}, ConfigFiles: []string{"/etc/outrider/outrider.toml"},
		Conditions: []condition.Condition{
			{Code: "x", Severity: condition.Warning, Since: time.Unix(50, 0).UTC(), Sentence: "y"}}}
	client, _ := serve(t, &apitest.Backend{StatusValue: want})
	got, err := client.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestReloadTellsItsProgressAndItsEnd(t *testing.T) {
	backend := &apitest.Backend{
		ReloadSteps: []api.Progress{{Phase: "validating"}},
		ReloadValue: api.ReloadResult{Outcome: api.OutcomeRestarted, PreviousEpoch: number(0),
			Epoch: number(1)},
	}
	client, _ := serve(t, backend)
	var phases []string
	result, err := client.Reload(t.Context(), api.ReloadRequest{IfChanged: true},
		func(p api.Progress) { phases = append(phases, p.Phase) })
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(backend.ReloadValue, result); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"validating"}, phases); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]api.ReloadRequest{{IfChanged: true}},
		backend.ReloadRequests()); diff != "" {
		t.Error(diff)
	}
}

func TestAnErrorOfTheAgentKeepsItsReasons(t *testing.T) {
	for _, call := range []func(*api.Client) error{
		func(c *api.Client) error { _, err := c.Status(t.Context()); return err },
		func(c *api.Client) error {
			_, err := c.Reload(t.Context(), api.ReloadRequest{}, nil)
			return err
		},
		func(c *api.Client) error { _, err := c.Undrain(t.Context(), nil); return err },
	} {
		client, _ := serve(t, &apitest.Backend{
			Err: fmt.Errorf("wrapped: %w", api.NewRefusal("no", "because", "and because"))})
		err := call(client)
		refused, ok := errors.AsType[*api.Error](err)
		if !ok {
			t.Fatalf("got %v", err)
		}
		if diff := cmp.Diff(&api.Error{Status: http.StatusConflict, Message: "no",
			Reasons: []string{"because", "and because"}}, refused); diff != "" {
			t.Error(diff)
		}
		if code := api.ExitCode(err); code != api.ExitRefused {
			t.Errorf("exit code %d", code)
		}
	}
}

func TestNobodyOnTheSocket(t *testing.T) {
	dir := parts.ShortDir(t)
	for _, name := range []string{"none.sock", "stale.sock"} {
		path := filepath.Join(dir, name)
		if name == "stale.sock" {
			listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
			if err != nil {
				t.Fatal(err)
			}
			listener.SetUnlinkOnClose(false)
			_ = listener.Close()
		}
		client := api.NewClient(path)
		if _, err := client.Status(t.Context()); api.ExitCode(err) != api.ExitNotRunning ||
			!strings.Contains(err.Error(), path) {
			t.Errorf("%s: exit code %d: %v", name, api.ExitCode(err), err)
		}
	}
}

func TestASecondServerLeavesTheFirstAlone(t *testing.T) {
	dir := parts.ShortDir(t)
	socket := apitest.Serve(t, dir, &apitest.Backend{}, condition.NewRegistry())
	second := api.NewServer(api.Options{Socket: socket, Backend: &apitest.Backend{},
		Conditions: condition.NewRegistry(), Logger: slog.New(slog.DiscardHandler)})
	if err := second.Run(t.Context()); err == nil ||
		!strings.Contains(err.Error(), "another agent") {
		t.Fatalf("second server: %v", err)
	}
	client := api.NewClient(socket)
	defer client.Close()
	if _, err := client.Status(t.Context()); err != nil {
		t.Errorf("the first no longer answers: %v", err)
	}
}

func TestTheSocketOfADeadAgentIsTakenOverAndRemovedAtTheEnd(t *testing.T) {
	path := filepath.Join(parts.ShortDir(t), api.SocketName)
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	_ = dead.Close()
	server := api.NewServer(api.Options{Socket: path, Backend: &apitest.Backend{},
		Conditions: condition.NewRegistry(), Logger: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	<-server.Ready()
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o666 {
		t.Errorf("%v, %v", info, err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
}

func TestEventsKeptAndFollowed(t *testing.T) {
	client, board := serve(t, &apitest.Backend{})
	board.Publish(condition.Event{Kind: condition.KindEpochStarted, Epoch: number(0)})
	board.Publish(condition.Event{Kind: condition.KindEpochLive, Epoch: number(0)})
	var kinds []string
	done := errors.New("done")
	err := client.Events(t.Context(), 1, true, func(event condition.Event) error {
		kinds = append(kinds, event.Kind)
		if event.Kind == condition.KindEpochLive {
			board.Publish(condition.Event{Kind: condition.KindDraining})
			return nil
		}
		return done
	})
	if !errors.Is(err, done) {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{condition.KindEpochLive, condition.KindDraining},
		kinds); diff != "" {
		t.Error(diff)
	}
	kinds = nil
	if err := client.Events(t.Context(), 0, false, func(e condition.Event) error {
		kinds = append(kinds, e.Kind)
		return nil
	}); err != nil || len(kinds) != 3 {
		t.Errorf("%v, %v", kinds, err)
	}
}

func TestAClientThatGoesAwayEndsTheWaitOnly(t *testing.T) {
	backend := &apitest.Backend{NotReadyReason: "no epoch is live"}
	client, _ := serve(t, backend)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := client.WaitReady(ctx, func(p api.Progress) {
		if p.Phase == "no epoch is live" {
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	parts.Eventually(t, time.Minute, "the agent no longer waits for the client", func() bool {
		_, _, cancellations := backend.DrainCounts()
		return cancellations == 1
	})
}

func TestAdminIsPassedThrough(t *testing.T) {
	client, _ := serve(t,
		&apitest.Backend{AdminAnswers: map[string]string{"stats/prometheus?filter=a%7Cb": "x 1\n"}})
	answer, err := client.Admin(t.Context(), "stats/prometheus",
		map[string][]string{"filter": {"a|b"}})
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, _ := io.ReadAll(answer.Body)
	if string(body) != "x 1\n" || answer.Epoch != 3 {
		t.Errorf("%q from epoch %d", body, answer.Epoch)
	}
	for _, path := range []string{"quitquitquit", "stats/../quitquitquit", "drain_listeners", ""} {
		if _, err := client.Admin(t.Context(), path, nil); err == nil {
			t.Errorf("%q was let through", path)
		}
	}
}

func TestRequestsThatAreRefused(t *testing.T) {
	client, _ := serve(t, &apitest.Backend{})
	tests := []struct{ name, request, want string }{
		{"unknown path", "GET /v1/nothing HTTP/1.1\r\nHost: x\r\n\r\n", "404"},
		{"wrong method", "GET /v1/reload HTTP/1.1\r\nHost: x\r\n\r\n", "404"},
		{"unknown field",
			"POST /v1/reload HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{\"what\":1}", "400"},
		{"body too large",
			fmt.Sprintf(
				"POST /v1/reload HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n{\"if_changed\":%s",
				strings.Repeat(" ", 100000)), "400"},
		{"header too large", "GET /v1/status HTTP/1.1\r\nHost: x\r\nX: " +
			strings.Repeat("x", 64<<10) + "\r\n\r\n", "431"},
		{"no HTTP", "hello\r\n\r\n", "400"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			connection, err := net.Dial("unix", client.Socket())
			if err != nil {
				t.Fatal(err)
			}
			defer connection.Close()
			_ = connection.SetDeadline(time.Now().Add(10 * time.Second))
			go func() { _, _ = connection.Write([]byte(test.request)) }()
			line, err := bufio.NewReader(connection).ReadString('\n')
			if err != nil || !strings.Contains(line, test.want) {
				t.Errorf("%q, %v", line, err)
			}
		})
	}
}

func TestAnswersAreJSONWithAnErrorField(t *testing.T) {
	client, _ := serve(t, &apitest.Backend{})
	connection, err := net.Dial("unix", client.Socket())
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	_, _ = connection.Write([]byte("GET /v1/nothing HTTP/1.0\r\n\r\n"))
	text, err := io.ReadAll(connection)
	if err != nil {
		t.Fatal(err)
	}
	_, body, _ := strings.Cut(string(text), "\r\n\r\n")
	var answer api.Error
	if err := json.Unmarshal([]byte(body), &answer); err != nil || answer.Message == "" {
		t.Errorf("%s: %v", body, err)
	}
}
