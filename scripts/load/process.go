package load

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"

	"outrider.org/outrider/scripts/parts"
)

// Process is a run in a separate process, built without the race detector.
type Process struct {
	command *exec.Cmd
	stdin   io.WriteCloser
	stderr  bytes.Buffer
	report  func() (Report, error)
}

// build builds the program, once per process.
var build = sync.OnceValues(func() (string, error) {
	folder, err := parts.RunBuildScript(nil, "programs", "./scripts/load/cmd/load")
	return filepath.Join(folder, "load"), err
})

// StartProcess is Start in another process. Config.Output receives all lines at the end.
func StartProcess(ctx context.Context, config Config) (*Process, error) {
	program, err := build()
	if err != nil {
		return nil, err
	}
	p := &Process{}
	p.command = exec.CommandContext(ctx, program,
		"-http", config.HTTPAddress, "-http2", config.HTTP2Address, "-tcp", config.TCPAddress,
		"-path", config.Path, "-host", config.Host,
		"-rate", strconv.FormatFloat(config.Rate, 'g', -1, 64), "-timeout", config.Timeout.String())
	p.command.Stderr = &p.stderr
	if p.stdin, err = p.command.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := p.command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.command.Start(); err != nil {
		return nil, fmt.Errorf("start the load generator: %w", err)
	}
	lines := make(chan []byte, 1)
	go func() {
		all, _ := io.ReadAll(stdout) // incomplete output is detected in the last line
		lines <- all
	}()
	p.report = sync.OnceValues(func() (Report, error) {
		_ = p.stdin.Close() // the end of standard input ends the run
		out := <-lines
		if err := p.command.Wait(); err != nil {
			return Report{}, fmt.Errorf("load generator: %w: %s", err, p.stderr.Bytes())
		}
		out = bytes.TrimRight(out, "\n")
		last := out[bytes.LastIndexByte(out, '\n')+1:]
		if config.Output != nil {
			if _, err := config.Output.Write(out[:len(out)-len(last)]); err != nil {
				return Report{}, err
			}
		}
		var result struct{ Report *Report }
		err := json.Unmarshal(last, &result)
		if err == nil && result.Report == nil {
			err = errors.New("JSON without a report")
		}
		if err != nil {
			return Report{}, fmt.Errorf("load generator: decode the last line of its output, %q: %w",
				last, err)
		}
		return *result.Report, nil
	})
	return p, nil
}

// Mark adds an event to the report.
func (p *Process) Mark(label string) error {
	_, err := fmt.Fprintln(p.stdin, label)
	return err
}

// Stop ends the run and returns its report, like RunningLoad.Stop.
func (p *Process) Stop() (Report, error) { return p.report() }
