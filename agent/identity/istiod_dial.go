package identity

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"outrider.org/outrider/agent/identity/pki"
)

// dialOptions returns the options of the connection to istiod, with roots and credentials read from
// their files. Without a certificate the token authenticates the agent, if one is configured.
func (i Istiod) dialOptions(
	trusted []*x509.Certificate, certificate *tls.Certificate,
) ([]grpc.DialOption, error) {
	options := []grpc.DialOption{
		grpc.WithDefaultServiceConfig(caRetries),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay: 100 * time.Millisecond, Multiplier: 2, MaxDelay: time.Second,
			},
			MinConnectTimeout: 5 * time.Second,
		}),
	}
	secure := insecure.NewCredentials()
	if !i.Plaintext {
		config := &tls.Config{ServerName: i.ServerName, MinVersion: tls.VersionTLS12}
		var err error
		if config.RootCAs, err = i.roots(trusted); err != nil {
			return nil, err
		}
		if certificate != nil {
			config.Certificates = []tls.Certificate{*certificate}
		}
		secure = credentials.NewTLS(config)
	}
	options = append(options, grpc.WithTransportCredentials(secure))
	if certificate != nil || i.TokenFile == "" {
		return options, nil
	}
	token := pki.BearerToken{File: i.TokenFile, Plaintext: i.Plaintext}
	if _, err := token.Token(); err != nil {
		return nil, err
	}
	return append(options, grpc.WithPerRPCCredentials(token)), nil
}

// roots returns the roots that verify istiod's certificate: those of RootFile, and trusted, which
// the authority sent with the last certificate, so that a rotation of the root needs no new file.
// It returns nil, which selects the system's roots, if RootFile is "".
func (i Istiod) roots(trusted []*x509.Certificate) (*x509.CertPool, error) {
	if i.RootFile == "" {
		return nil, nil //nolint:nilnil // crypto/tls uses the system's
	}
	pool := x509.NewCertPool()
	in, err := readFile(i.RootFile, nil)
	if err == nil {
		var roots []*x509.Certificate
		roots, err = pki.ParseRoots(in, time.Now())
		trusted = append(roots, trusted...)
	}
	if len(trusted) == 0 {
		return nil, err
	}
	for _, root := range trusted {
		pool.AddCert(root)
	}
	return pool, nil
}

// clientCertificate returns the certificate and key in ProvCertDir or, with UseWorkloadCertificate,
// current. It returns an error if they are not valid, and nil without an error if neither is
// configured.
func (i Istiod) clientCertificate(current *pki.Pair) (*tls.Certificate, error) {
	switch {
	case i.Plaintext, i.ProvCertDir == "" && (!i.UseWorkloadCertificate || current == nil):
		return nil, nil //nolint:nilnil // none is used
	case i.ProvCertDir == "":
		if err := current.CheckTime(time.Now()); err != nil {
			return nil, err
		}
		return keyPair("the current certificate", current)
	}
	files := SecretFiles{
		Cert: filepath.Join(i.ProvCertDir, chainFile), Key: filepath.Join(i.ProvCertDir, keyFile),
	}
	version, err := source{files: files, usage: pki.UsageEither}.read(time.Now())
	if err != nil {
		return nil, err
	}
	return keyPair(files.Cert, version.pair)
}

func keyPair(name string, from *pki.Pair) (*tls.Certificate, error) {
	pair, err := tls.X509KeyPair(from.ChainPEM, from.KeyPEM)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return &pair, nil
}
