package relay

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"

	"outrider.org/outrider/agent/identity/pki"
	"outrider.org/outrider/agent/readfile"
)

// Upstream describes an xDS server and how client and server authenticate. Its files are read for
// each connection.
type Upstream struct {
	Addresses []string // addresses as host:port; one at a time is used
	TLS       bool
	RootFile  string // file with trusted roots; "": the system's roots
	// server name for SNI and for the check of the certificate; "": host of the address
	ServerName string
	// URI SAN that the server's certificate must have: spiffe://ID, or the end of the URI; "": any
	ServerIdentity         string
	TokenFile              string // file with a JWT, which is sent over TLS only; "": none
	CertFile               string // file with the client certificate; "": none
	KeyFile                string
	UseWorkloadCertificate bool // the client certificate is that of the workload
	ClusterID              string
	Namespace              string // namespace of the workload, for debug requests
	ServiceAccount         string
	ConnectTimeout         time.Duration
}

// name returns the key of the server in the cache. The order of the addresses does not affect it.
func (u Upstream) name() string {
	return strings.Join(slices.Sorted(slices.Values(u.Addresses)), ",")
}

// Equal reports whether two Upstreams name the same server and the same way to reach it.
func (u Upstream) Equal(other Upstream) bool { return reflect.DeepEqual(u, other) }

// maxCertificates bounds a file of roots or of a client certificate, in bytes.
const maxCertificates = 4 << 20

// Flow control windows. They are large, so that the first resources of a large mesh arrive without
// waiting for window updates.
const (
	streamWindow     = 1 << 20
	connectionWindow = 2 << 20
)

// dialOptions reads the credentials, and returns the options of a connection to one of the
// addresses. server provides the workload's certificate and additional roots.
func (u Upstream) dialOptions(address string, server Options) ([]grpc.DialOption, error) {
	options := []grpc.DialOption{
		grpc.WithDisableServiceConfig(),
		grpc.WithInitialWindowSize(streamWindow), grpc.WithInitialConnWindowSize(connectionWindow),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveInterval,
			Timeout: keepaliveTimeout}),
		// A gRPC connection is used for one attempt only; the session pauses between attempts.
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig,
			MinConnectTimeout: u.ConnectTimeout}),
	}
	if server.UserAgent != "" {
		options = append(options, grpc.WithUserAgent(server.UserAgent))
	}
	if !proxied(address) {
		// with a proxy in the environment, gRPC's default dialer connects through it
		options = append(options, grpc.WithContextDialer(dial))
	}
	// the target is an IP address, but the certificate is checked for the name
	if u.ServerName == "" {
		options = append(options, grpc.WithAuthority(address))
	}
	if !u.TLS {
		return append(options, grpc.WithTransportCredentials(insecure.NewCredentials())), nil
	}
	config := &tls.Config{ServerName: u.ServerName, MinVersion: tls.VersionTLS12}
	if u.RootFile != "" {
		text, err := readfile.Read(u.RootFile, maxCertificates)
		if err != nil {
			return nil, fmt.Errorf("cannot read roots: %w", err)
		}
		roots, err := pki.ParseRoots(pki.PEMInput{File: u.RootFile, PEM: text}, time.Now())
		if err != nil {
			return nil, err
		}
		if server.ExtraRoots != nil {
			roots = append(roots, server.ExtraRoots()...)
		}
		config.RootCAs = x509.NewCertPool()
		for _, root := range roots {
			config.RootCAs.AddCert(root)
		}
	}
	if u.ServerIdentity != "" {
		config.VerifyConnection = u.verify
	}
	if u.CertFile != "" {
		pair, err := u.clientCertificate()
		if err != nil {
			return nil, fmt.Errorf("cannot read client certificate: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	if u.UseWorkloadCertificate {
		certificate, err := server.Certificate()
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{*certificate}
	}
	if u.TokenFile != "" {
		token := pki.BearerToken{File: u.TokenFile}
		if _, err := token.Token(); err != nil {
			return nil, err
		}
		options = append(options, grpc.WithPerRPCCredentials(token))
	}
	return append(options, grpc.WithTransportCredentials(credentials.NewTLS(config))), nil
}

func (u Upstream) clientCertificate() (tls.Certificate, error) {
	chain, err := readfile.Read(u.CertFile, maxCertificates)
	if err != nil {
		return tls.Certificate{}, err
	}
	key, err := readfile.Read(u.KeyFile, maxCertificates)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(chain, key)
}

// verify checks whether the server has the configured identity. TLS has verified its certificate
// chain and name before.
func (u Upstream) verify(connection tls.ConnectionState) error {
	leaf := connection.PeerCertificates[0]
	var found []string
	for _, uri := range leaf.URIs {
		found = append(found, uri.String())
	}
	if slices.ContainsFunc(found, func(uri string) bool {
		return uri == u.ServerIdentity ||
			!strings.HasPrefix(u.ServerIdentity, "spiffe://") && strings.HasSuffix(uri,
				u.ServerIdentity)
	}) {
		return nil
	}
	return fmt.Errorf("none of the server's identities %q is, or ends in, %q "+
		"([discovery] pilot_identity)", found, u.ServerIdentity)
}

// outgoing adds gRPC metadata that istiod reads from requests.
func (u Upstream) outgoing(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "ClusterID", u.ClusterID)
}
