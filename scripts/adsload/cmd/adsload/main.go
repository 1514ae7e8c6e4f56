// Adsload connects clients to an xDS server as Envoys do, waits until each has received all its
// resources, and prints how long that took. With --mark it then waits until every client has
// received a response that contains the text of the mark.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"sort"
	"time"

	"outrider.org/outrider/scripts/adsload"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "adsload:", err)
		os.Exit(1)
	}
}

func run() error {
	var options adsload.Options
	var mark string
	var wait time.Duration
	flag.Func("target", "unix:///path or host:port of the server, without TLS; more for further ones",
		func(target string) error {
			options.Targets = append(options.Targets, target)
			return nil
		})
	flag.IntVar(&options.Clients, "clients", 1, "how many clients")
	flag.BoolVar(&options.Delta, "delta", true, "incremental xDS; false: state of the world")
	flag.BoolVar(&options.SameNodeID, "same", true,
		"all clients get the same: one reads it, the others only count")
	flag.StringVar(&mark, "mark", "",
		"then wait until endpoints with these bytes (an address) have come to every client")
	flag.DurationVar(&wait, "wait", time.Minute, "for each of both, at most so long")
	flag.Parse()
	if len(options.Targets) == 0 {
		options.Targets = []string{"127.0.0.1:15010"}
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	begun := time.Now()
	load, err := adsload.Start(ctx, options)
	if err != nil {
		return err
	}
	full, err := within(ctx, wait, load.WaitInitialResources)
	if err != nil {
		return fmt.Errorf("%w; %w", err, load.Stop())
	}
	slices.Sort(full)
	fmt.Printf("full: all %v, client p50 %v, p100 %v\n", time.Since(begun).Round(time.Microsecond),
		full[len(full)/2], full[len(full)-1])
	received := load.Received()
	types := make([]string, 0, len(received))
	for typeURL := range received {
		types = append(types, typeURL)
	}
	sort.Strings(types)
	for _, typeURL := range types {
		r := received[typeURL]
		fmt.Printf("%s: %d responses, %d resources, %d bytes\n", typeURL, r.Responses, r.Resources,
			r.Bytes)
	}
	if mark != "" {
		m := load.WatchContent(adsload.EndpointType, []byte(mark))
		at, err := within(ctx, wait, m.Wait)
		if err != nil {
			return fmt.Errorf("%w; %w", err, load.Stop())
		}
		slices.SortFunc(at, time.Time.Compare)
		fmt.Printf("mark: first client at %s, last %v later\n", at[0].Format(time.RFC3339Nano),
			at[len(at)-1].Sub(at[0]))
	}
	return load.Stop()
}

func within[T any](ctx context.Context, wait time.Duration, f func(context.Context) (T, error)) (T,
	error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	return f(ctx)
}
