package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/lifecycle"
	"outrider.org/outrider/agent/repeat"
	"outrider.org/outrider/agent/watch"
)

// conditionCertificate is active while the files of [tls] are invalid. The last valid certificate
// remains in use.
const conditionCertificate = "certificate-refused"

// serverIdentity holds the server's certificate, and the CA certificates that verify client
// certificates. Changes of their files take effect for new connections.
type serverIdentity struct {
	watcher *watch.Notifier
	board   *condition.Registry
	log     *slog.Logger
	current atomic.Pointer[tls.Config]
	// limits the number of log lines about refused client certificates
	refusals repeat.Limiter

	mu      sync.Mutex
	files   config.DiscoverydTLS
	trusted []*x509.Certificate // roots for client certificates besides those in ClientCAFile
	stop    func()              // ends the current watch of the files
}

func newServerIdentity(files config.DiscoverydTLS, watcher *watch.Notifier,
	board *condition.Registry,
	log *slog.Logger) *serverIdentity {
	return &serverIdentity{watcher: watcher, board: board, log: log, files: files, stop: func() {}}
}

// hasCertificate reports whether a certificate and a key are configured.
func hasCertificate(files config.DiscoverydTLS) bool {
	return files.CertFile != "" && files.KeyFile != ""
}

// load reads the files and starts to watch them. It returns the error of the first read.
func (s *serverIdentity) load() error {
	s.mu.Lock()
	files := s.files
	c, err := readIdentity(files, s.trusted)
	s.mu.Unlock()
	if err != nil {
		return err
	}
	s.current.Store(c)
	s.use(files)
	return nil
}

// use replaces the files, and watches them. The watch begins before the files are read, so that no
// change is missed.
func (s *serverIdentity) use(files config.DiscoverydTLS) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stop()
	s.files = files
	paths := []string{files.CertFile, files.KeyFile}
	if files.ClientCAFile != "" {
		paths = append(paths, files.ClientCAFile)
	}
	s.stop = s.watcher.Watch(paths, s.reread)
}

// trust replaces the roots that verify client certificates besides those in ClientCAFile.
func (s *serverIdentity) trust(roots []*x509.Certificate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trusted = roots
	if s.current.Load() != nil {
		s.update()
	}
}

// reread reads the files again, and uses them if they are valid.
func (s *serverIdentity) reread() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.update()
}

// update reads the files, and raises or clears conditionCertificate. Callers hold mu.
func (s *serverIdentity) update() {
	c, err := readIdentity(s.files, s.trusted)
	if err != nil {
		s.board.Raise(conditionCertificate, condition.Error,
			"the files of [tls] are not usable, those read before stay: "+err.Error())
		return
	}
	s.board.Clear(conditionCertificate)
	if before := s.current.Swap(c); before != nil &&
		!before.Certificates[0].Leaf.Equal(c.Certificates[0].Leaf) {
		s.log.Info("new server certificate in use",
			"serial", c.Certificates[0].Leaf.SerialNumber.String(),
			"not_after", c.Certificates[0].Leaf.NotAfter)
	}
}

// readIdentity reads the files of [tls]. A client may connect without a certificate. If it presents
// one, TLS verifies the certificate with the roots in ClientCAFile and trusted.
func readIdentity(files config.DiscoverydTLS, trusted []*x509.Certificate) (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(files.CertFile, files.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("certificate %s with key %s: %w", files.CertFile, files.KeyFile, err)
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"},
		Certificates: []tls.Certificate{pair}}
	if files.ClientCAFile == "" && len(trusted) == 0 {
		return c, nil
	}
	c.ClientCAs, c.ClientAuth = x509.NewCertPool(), tls.VerifyClientCertIfGiven
	for _, root := range trusted {
		c.ClientCAs.AddCert(root)
	}
	if files.ClientCAFile == "" {
		return c, nil
	}
	text, err := os.ReadFile(files.ClientCAFile)
	if err != nil {
		return nil, err
	}
	if !c.ClientCAs.AppendCertsFromPEM(text) {
		return nil, errors.New(files.ClientCAFile + " has no certificate in PEM")
	}
	return c, nil
}

// certificateWatch runs the watch of certificate files as a component of the program.
type certificateWatch struct {
	lifecycle.Readiness
	*watch.Notifier
}

// Name returns the name of the component.
func (*certificateWatch) Name() string { return "certificate watch" }

// Run watches the certificate files until ctx ends.
func (w *certificateWatch) Run(ctx context.Context) error {
	w.MarkReady()
	return w.Notifier.Run(ctx)
}
