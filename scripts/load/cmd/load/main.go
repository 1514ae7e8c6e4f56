// Command load runs the load generator as a separate process, so that the race detector and the
// garbage collector of a measured program do not disturb it. It prints a line of JSON per second
// and, at the end, {"report": …}. Each line on standard input is recorded as a mark. The command
// ends at the end of standard input, on SIGINT or SIGTERM, or after -duration.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"outrider.org/outrider/scripts/load"
)

func main() {
	var config load.Config
	flag.StringVar(&config.HTTPAddress, "http", "",
		"`address` of the HTTP/1.1 load: host:port or the path of a Unix socket")
	flag.StringVar(&config.HTTP2Address, "http2", "", "`address` of the HTTP/2 load (in the clear)")
	flag.StringVar(&config.TCPAddress, "tcp", "", "`address` of the TCP echo load")
	flag.StringVar(&config.Path, "path", "/", "`path` of each request")
	flag.StringVar(&config.Host, "host", "", "`host` of each request (default: the address)")
	flag.Float64Var(&config.Rate, "rate", 1, "`factor` on the standard rates (1: 1800 requests/s)")
	flag.DurationVar(&config.Timeout, "timeout", 0, "longest time of one operation (default 5s)")
	duration := flag.Duration("duration", 0, "of the run (default: until standard input ends)")
	people := flag.Bool("people", false, "print a report for people instead of JSON")
	flag.Parse()
	if err := run(config, *duration, *people); err != nil {
		fmt.Fprintln(os.Stderr, "load:", err)
		os.Exit(1)
	}
}

func run(config load.Config, duration time.Duration, people bool) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, duration)
		defer cancel()
	}
	if !people {
		config.Output = os.Stdout
	}
	running, err := load.Start(ctx, config)
	if err != nil {
		return err
	}
	marks := make(chan string)
	go func() {
		defer close(marks)
		lines := bufio.NewScanner(os.Stdin)
		for lines.Scan() {
			marks <- lines.Text()
		}
	}()
	for open := true; open; {
		var label string
		select {
		case label, open = <-marks:
			if open {
				running.Mark(label)
			} else if duration > 0 {
				// With -duration, the end of standard input does not end the run.
				open, marks = true, nil
			}
		case <-ctx.Done():
			open = false
		}
	}
	report := running.Stop()
	if people {
		_, err := fmt.Print(report)
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(struct {
		Report load.Report `json:"report"`
	}{report})
}
