package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"log/slog"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/journal"
	"outrider.org/outrider/scripts/parts"
)

// conditionCodes returns the codes of all conditions: the string constants of this repository whose
// name begins with condition or code. It fails if a call of Raise has neither such a constant nor a
// variable.
func conditionCodes(t *testing.T) []string {
	t.Helper()
	codes, raised := map[string]string{}, map[string]token.Position{}
	files := token.NewFileSet()
	visit := func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ValueSpec:
			for i, name := range n.Names {
				lower := strings.ToLower(name.Name)
				if i >= len(n.Values) || !strings.HasPrefix(lower, "condition") &&
					!strings.HasPrefix(lower, "code") {
					continue
				}
				if literal, ok := n.Values[i].(*ast.BasicLit); ok && literal.Kind == token.STRING {
					codes[name.Name+literal.Value], _ = strconv.Unquote(literal.Value)
				}
			}
		case *ast.CallExpr:
			method, ok := n.Fun.(*ast.SelectorExpr)
			if !ok || method.Sel.Name != "Raise" || len(n.Args) != 3 {
				return true
			}
			switch code := n.Args[0].(type) {
			case *ast.Ident:
				raised[code.Name] = files.Position(n.Pos())
			case *ast.SelectorExpr:
				raised[code.Sel.Name] = files.Position(n.Pos())
			case *ast.BasicLit:
				t.Errorf("%s: a condition without a constant", files.Position(n.Pos()))
			}
		}
		return true
	}
	root := filepath.Join(parts.RepositoryRoot(), "agent")
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") ||
			strings.HasPrefix(path, filepath.Join(root, "keeper")) {
			return err
		}
		file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err == nil {
			ast.Inspect(file, visit)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, at := range raised {
		known := slices.ContainsFunc(slices.Collect(maps.Keys(codes)),
			func(code string) bool { return strings.HasPrefix(code, name+`"`) })
		if !known && name != "code" { // code is the variable that some callers of Raise use
			t.Errorf("%s: no constant %s", at, name)
		}
	}
	return append(slices.Compact(slices.Sorted(maps.Values(codes))),
		conditionResourcesRefused("type.googleapis.com/envoy.config.cluster.v3.Cluster"))
}

// perMinute returns the largest number of the times that fall into one minute.
func perMinute(all []time.Time) (most int) {
	for i := range all {
		n := 0
		for _, other := range all[i:] {
			if other.Sub(all[i]) < time.Minute {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}

// A condition that changes constantly causes at most three log lines and events a minute. Its state
// is current at once, and its end is always reported.
func TestConditions_RepeatNothingWithoutBound(t *testing.T) {
	const failures, limit = 1_000, 3
	errors := []string{"connection refused", "i/o timeout", "no route to host", "reset"}
	text := func(kind string, i int) string {
		return fmt.Sprintf("query to 10.0.0.1:53: read udp 10.0.0.9:%d->10.0.0.1:53: %s after %dms",
			10_000+i, kind, i)
	}
	for what, fail := range map[string]func(board *condition.Registry, code string, i int){
		"the same error": func(board *condition.Registry, code string, i int) {
			board.Raise(code, condition.Error, text(errors[0], i))
		},
		"several errors": func(board *condition.Registry, code string, i int) {
			board.Raise(code, condition.Warning, text(errors[i%len(errors)], i))
		},
		"an error that comes and goes": func(board *condition.Registry, code string, i int) {
			board.Raise(code, condition.Error, text(errors[0], i))
			board.Clear(code)
		},
	} {
		t.Run(what, func(t *testing.T) {
			codes := conditionCodes(t)
			if len(codes) < 30 {
				t.Fatalf("only %d conditions: %v", len(codes), codes)
			}
			for _, code := range codes {
				synctest.Test(t, func(t *testing.T) { repeatCondition(t, code, failures, limit, fail) })
			}
		})
	}
}

func repeatCondition(t *testing.T, code string, failures, limit int,
	fail func(board *condition.Registry, code string, i int)) {
	board := condition.NewRegistry()
	var output bytes.Buffer
	logs, err := journal.OpenLogs(journal.LogOptions{Output: &output, Format: "json",
		Level: slog.LevelInfo, EnvoyLevel: slog.LevelInfo})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer synctest.Wait()
	defer cancel()
	go func() {
		_ = (&journal.EventLog{Conditions: board, Log: logs.Agent, Logs: logs,
			LiveEpoch: noEpochs{}}).Run(ctx)
	}()
	for i := range failures {
		fail(board, code, i)
		time.Sleep(3 * time.Minute / time.Duration(failures))
	}
	board.Clear(code)
	if all := board.Conditions(); len(all) != 0 {
		t.Errorf("%s: cleared, and there is %+v", code, all)
	}
	time.Sleep(2 * time.Minute)
	synctest.Wait()
	var events, lines []time.Time
	last := ""
	for _, event := range board.Events(0) {
		events = append(events, event.Time)
		last = event.Kind
	}
	for decoder := json.NewDecoder(&output); decoder.More(); {
		var line struct{ Time time.Time }
		if err := decoder.Decode(&line); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, line.Time)
	}
	if got := perMinute(events); got > limit || got == 0 {
		t.Errorf("%s: %d events a minute", code, got)
	}
	if got := perMinute(lines); got > limit || got == 0 {
		t.Errorf("%s: %d lines a minute", code, got)
	}
	if last != condition.KindConditionCleared {
		t.Errorf("%s: the last event is %s", code, last)
	}
}

// noEpochs implements journal.LiveEpoch without a live epoch.
type noEpochs struct{}

func (noEpochs) EpochNumber() int         { return -1 }
func (noEpochs) Changed() <-chan struct{} { return nil }
