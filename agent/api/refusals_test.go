package api_test

import (
	"bufio"
	"bytes"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/api/apitest"
	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/journal"
	"outrider.org/outrider/scripts/parts"
)

// counter is a log writer that counts lines.
type counter struct{ atomic.Int64 }

// Write implements io.Writer.
func (c *counter) Write(line []byte) (int, error) {
	c.Add(1)
	return len(line), nil
}

// Users cannot flood the journal with refused requests.
func TestRefusals_DoNotFillTheLog(t *testing.T) {
	var logged counter
	dir := parts.ShortDir(t)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	logs, err := journal.OpenLogs(journal.LogOptions{Output: &logged, Format: "json",
		Level: slog.LevelInfo, EnvoyLevel: slog.LevelInfo})
	if err != nil {
		t.Fatal(err)
	}
	socket := apitest.ServeWith(t, api.Options{
		Socket: filepath.Join(dir, api.SocketName), Backend: &apitest.Backend{},
		Conditions: condition.NewRegistry(), Logger: logs.Agent,
	})
	var connection net.Conn
	parts.RunAs(t, parts.NobodyUID, func() { connection, err = net.Dial("unix", socket) })
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = connection.Close() }()
	answers := bufio.NewReader(connection)
	const requests = 500
	for range requests {
		_, _ = connection.Write([]byte("GET /v1/config HTTP/1.1\r\nHost: x\r\n\r\n"))
		answer, err := http.ReadResponse(answers, nil)
		if err != nil {
			t.Fatal(err)
		}
		var body bytes.Buffer
		if _, err := body.ReadFrom(answer.Body); err != nil ||
			answer.StatusCode != http.StatusForbidden {
			t.Fatalf("%s, %v", answer.Status, err)
		}
	}
	if lines := logged.Load(); lines != 1 {
		t.Errorf("%d of %d refusals were logged, want 1", lines, requests)
	}
}
