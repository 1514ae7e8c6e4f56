package mcp

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"outrider.org/outrider/agent/identity/pki"
	"outrider.org/outrider/agent/readfile"
)

const (
	maxResponse       = 256 << 20 // bytes; a response contains all objects of a kind
	maxCertificates   = 4 << 20
	keepaliveInterval = 30 * time.Second
	keepaliveTimeout  = 10 * time.Second
)

// dial returns a connection with the credentials that the configured files contain now.
func (s *Source) dial() (*grpc.ClientConn, error) {
	options := []grpc.DialOption{grpc.WithDisableServiceConfig(), grpc.WithNoProxy(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxResponse)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveInterval,
			Timeout: keepaliveTimeout})}
	secure := insecure.NewCredentials()
	if !s.options.Plaintext {
		config := &tls.Config{MinVersion: tls.VersionTLS12}
		if file := s.options.CAFile; file != "" {
			text, err := readfile.Read(file, maxCertificates)
			if err != nil {
				return nil, fmt.Errorf("ca_file: %w", err)
			}
			roots, err := pki.ParseRoots(pki.PEMInput{File: file, PEM: text}, time.Now())
			if err != nil {
				return nil, err
			}
			config.RootCAs = x509.NewCertPool()
			for _, root := range roots {
				config.RootCAs.AddCert(root)
			}
		}
		if s.options.CertFile != "" {
			pair, err := tls.LoadX509KeyPair(s.options.CertFile, s.options.KeyFile)
			if err != nil {
				return nil, fmt.Errorf("cert_file, key_file: %w", err)
			}
			config.Certificates = []tls.Certificate{pair}
		}
		secure = credentials.NewTLS(config)
	}
	if s.options.TokenFile != "" {
		token := pki.BearerToken{File: s.options.TokenFile}
		if _, err := token.Token(); err != nil {
			return nil, err
		}
		options = append(options, grpc.WithPerRPCCredentials(token))
	}
	connection, err := grpc.NewClient("passthrough:///"+s.options.Address,
		append(options, grpc.WithTransportCredentials(secure))...)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", s.options.Address, err)
	}
	return connection, nil
}

func isUnimplemented(err error) bool { return status.Code(err) == codes.Unimplemented }
