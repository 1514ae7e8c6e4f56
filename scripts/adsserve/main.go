// Command adsserve runs the discovery server without an agent, for benchmarks beside istiod.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/watch"
	"outrider.org/outrider/agent/xds"
)

func main() {
	files := flag.String("files", "", "`paths` of Istio's YAML, separated by commas")
	address := flag.String("listen", "127.0.0.1:15010", "`address` to serve on")
	after := flag.Duration("debounce-after", 100*time.Millisecond, "quiet time before a push")
	most := flag.Duration("debounce-max", 10*time.Second, "longest delay of a push")
	var secure authentication
	flag.StringVar(&secure.certificate, "cert", "", "`file` of the certificate chain; none: no TLS")
	flag.StringVar(&secure.key, "key", "", "`file` of its key")
	flag.StringVar(&secure.clients, "client-ca", "", "`file` of the roots of clients")
	flag.Parse()
	settings := discovery.Settings{DebounceAfter: *after, DebounceMax: *most}
	if err := run(strings.Split(*files, ","), *address, secure, settings); err != nil {
		fmt.Fprintln(os.Stderr, "adsserve:", err)
		os.Exit(1)
	}
}

// run serves until ctx ends. It listens after the files were read, so that connected clients are
// served.
func run(
	files []string, address string, secure authentication, settings discovery.Settings,
) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	watcher := watch.New(watch.Options{
		Delays:   watch.Delays{Debounce: time.Millisecond, MaxDelay: time.Millisecond},
		Suffixes: []string{".yaml", ".yml", ".json"},
	})
	folders := make([]string, len(files))
	for i, path := range files {
		folders[i] = path + "/..."
	}
	if err := watcher.Set(folders); err != nil {
		return err
	}
	server, err := discovery.New(discovery.Options{Files: files, Settings: settings,
		Changes: watcher.Changes()})
	if err != nil {
		return err
	}
	streams, err := xds.NewServer(xds.Options{Source: server})
	if err != nil {
		return err
	}
	options, err := secure.options()
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return watcher.Run(ctx) })
	group.Go(func() error { return server.Run(ctx) })
	group.Go(func() error {
		select {
		case <-server.Ready():
		case <-ctx.Done():
			return nil
		}
		listener, err := net.Listen("tcp", address)
		if err != nil {
			return err
		}
		return streams.Serve(ctx, listener, options...)
	})
	return group.Wait()
}

// authentication has the files of mutual TLS; none: no TLS.
type authentication struct{ certificate, key, clients string }

func (a authentication) options() ([]grpc.ServerOption, error) {
	if a.certificate == "" {
		return nil, nil
	}
	pair, err := tls.LoadX509KeyPair(a.certificate, a.key)
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(a.clients)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s has no certificate", a.clients)
	}
	return []grpc.ServerOption{grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{pair}, ClientCAs: roots,
		ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS12}))}, nil
}
