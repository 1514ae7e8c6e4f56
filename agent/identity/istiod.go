package identity

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	securityv1 "istio.io/api/security/v1alpha1"

	"outrider.org/outrider/agent/identity/pki"
)

// issueTimeout bounds one attempt, with its quick retries.
const issueTimeout = 30 * time.Second

// caRetries are the quick retries of a call, as Istio's agent makes them.
const caRetries = `{"methodConfig": [{
	"name": [{"service": "istio.v1.auth.IstioCertificateService"}],
	"timeout": "10s",
	"retryPolicy": {
		"maxAttempts": 5, "initialBackoff": "0.1s", "maxBackoff": "1.6s", "backoffMultiplier": 2,
		"retryableStatusCodes": ["CANCELLED", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "ABORTED",
			"INTERNAL", "UNAVAILABLE"]
	}
}]}`

// Istiod obtains certificates from istiod's authority (provider "istiod"). Each attempt makes a
// connection of its own and reads all files anew: changed roots, tokens and client certificates
// take effect without a restart.
type Istiod struct {
	Address     string // host:port
	ServerName  string // in istiod's certificate; "": the host of Address
	Plaintext   bool   // no TLS
	RootFile    string // roots of istiod's certificate; "": those of the system
	TokenFile   string // JSON Web Token; "": none
	ProvCertDir string // cert-chain.pem and key.pem to authenticate with, preferred to the token
	ClusterID   string
	SpiffeID    string
	KeyType     pki.KeyType
	PKCS8       bool
	TTL         time.Duration
	Now         func() time.Time // nil: time.Now
}

// String names the authority in messages.
func (i *Istiod) String() string { return "istiod at " + i.Address }

// Files implements Issuer.
func (i *Istiod) Files() []string {
	var files []string
	for _, path := range []string{i.RootFile, i.TokenFile} {
		if path != "" {
			files = append(files, path)
		}
	}
	if i.ProvCertDir != "" {
		files = append(files,
			filepath.Join(i.ProvCertDir, chainFile), filepath.Join(i.ProvCertDir, keyFile))
	}
	return files
}

func (i *Istiod) now() time.Time {
	if i.Now == nil {
		return time.Now()
	}
	return i.Now()
}

// Issue implements Issuer.
func (i *Istiod) Issue(ctx context.Context) (*Issued, error) {
	ctx, cancel := context.WithTimeout(ctx, issueTimeout)
	defer cancel()
	key, err := pki.GenerateKey(i.KeyType)
	if err != nil {
		return nil, err
	}
	keyPEM, err := pki.EncodeKey(key, i.PKCS8)
	if err != nil {
		return nil, err
	}
	request, err := pki.Request(key, i.SpiffeID)
	if err != nil {
		return nil, err
	}
	options, err := i.dialOptions()
	if err != nil {
		return nil, err
	}
	connection, err := grpc.NewClient("dns:///"+i.Address, options...)
	if err != nil {
		return nil, fmt.Errorf("cannot connect to %s: %w", i, err)
	}
	defer func() { _ = connection.Close() }() // used for this call alone
	ctx = metadata.AppendToOutgoingContext(ctx, "ClusterID", i.ClusterID)
	response, err := securityv1.NewIstioCertificateServiceClient(connection).CreateCertificate(ctx,
		&securityv1.IstioCertificateRequest{
			Csr: string(request), ValidityDuration: int64(i.TTL.Seconds()),
		})
	if err != nil {
		return nil, fmt.Errorf("%s issues no certificate: %w", i, err)
	}
	return i.accept(response.GetCertChain(), keyPEM)
}

// accept checks an answer. Its last element has the roots, the others the chain.
func (i *Istiod) accept(chain []string, key []byte) (*Issued, error) {
	if len(chain) < 2 {
		return nil, fmt.Errorf("%s answered with %d certificates; it must send chain and root",
			i, len(chain))
	}
	last := len(chain) - 1
	source := "answer of " + i.String()
	roots, err := pki.ParseRoots(pki.Input{File: source, PEM: []byte(chain[last])}, time.Time{})
	if err != nil {
		return nil, err
	}
	pair, err := pki.ParsePair(
		pki.Input{File: source, PEM: []byte(strings.Join(chain[:last], "\n"))},
		pki.Input{File: "generated key", PEM: key}, pki.Both)
	if err != nil {
		return nil, err
	}
	return &Issued{Pair: pair, Roots: roots, Obtained: i.now(), Source: FromIstiod}, nil
}

// dialOptions reads what authenticates both sides.
func (i *Istiod) dialOptions() ([]grpc.DialOption, error) {
	options := []grpc.DialOption{
		grpc.WithDefaultServiceConfig(caRetries),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay: 100 * time.Millisecond, Multiplier: 2, MaxDelay: time.Second,
			},
			MinConnectTimeout: 5 * time.Second,
		}),
	}
	if i.Plaintext {
		options = append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))
		return i.withToken(options)
	}
	config := &tls.Config{ServerName: i.ServerName, MinVersion: tls.VersionTLS12}
	if i.RootFile != "" {
		in, err := readFile(i.RootFile)
		if err != nil {
			return nil, err
		}
		roots, err := pki.ParseRoots(in, i.now())
		if err != nil {
			return nil, err
		}
		config.RootCAs = x509.NewCertPool()
		for _, root := range roots {
			config.RootCAs.AddCert(root)
		}
	}
	certificate, err := i.clientCertificate()
	if certificate != nil {
		config.Certificates = []tls.Certificate{*certificate}
	}
	options = append(options, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if certificate != nil {
		return options, nil
	}
	if i.TokenFile == "" {
		return options, err
	}
	options, tokenErr := i.withToken(options)
	if tokenErr != nil {
		return nil, errors.Join(err, tokenErr)
	}
	return options, nil
}

// clientCertificate returns the pair in ProvCertDir if it is valid. Without ProvCertDir it returns
// nil and no error.
func (i *Istiod) clientCertificate() (*tls.Certificate, error) {
	if i.ProvCertDir == "" {
		return nil, nil //nolint:nilnil // none is configured
	}
	files := Files{
		Cert: filepath.Join(i.ProvCertDir, chainFile), Key: filepath.Join(i.ProvCertDir, keyFile),
	}
	version, err := source{files: files, usage: pki.Either}.read(i.now())
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(version.pair.ChainPEM, version.pair.KeyPEM)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", files.Cert, err)
	}
	return &pair, nil
}

// withToken adds the token, if one is configured. One that has expired is an error now: istiod
// would only say that authentication failed.
func (i *Istiod) withToken(options []grpc.DialOption) ([]grpc.DialOption, error) {
	if i.TokenFile == "" {
		return options, nil
	}
	token := bearer{i}
	if _, err := token.read(); err != nil {
		return nil, err
	}
	return append(options, grpc.WithPerRPCCredentials(token)), nil
}

// bearer sends the token, read again for each attempt of a call.
type bearer struct{ istiod *Istiod }

func (b bearer) read() (pki.Token, error) {
	path := b.istiod.TokenFile
	text, err := os.ReadFile(path)
	if err != nil {
		return pki.Token{}, fmt.Errorf("cannot read token: %w", err)
	}
	token, err := pki.ParseToken(path, text)
	if err != nil {
		return pki.Token{}, err
	}
	return token, token.CheckTime(path, b.istiod.now())
}

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	token, err := b.read()
	if err != nil {
		return nil, err
	}
	return map[string]string{"authorization": "Bearer " + token.Raw}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (b bearer) RequireTransportSecurity() bool { return !b.istiod.Plaintext }
