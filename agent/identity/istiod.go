package identity

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	securityv1 "istio.io/api/security/v1alpha1"

	"outrider.org/outrider/agent/identity/pki"
)

// issueTimeout bounds one call of Issue, with all addresses and the retries of caRetries.
const issueTimeout = 30 * time.Second

// caRetries is the gRPC service config with the retries within one attempt; it equals that of
// Istio's agent.
const caRetries = `{"methodConfig": [{
	"name": [{"service": "istio.v1.auth.IstioCertificateService"}],
	"timeout": "10s",
	"retryPolicy": {
		"maxAttempts": 5, "initialBackoff": "0.1s", "maxBackoff": "1.6s", "backoffMultiplier": 2,
		"retryableStatusCodes": ["CANCELLED", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "ABORTED",
			"INTERNAL", "UNAVAILABLE"]
	}
}]}`

// Istiod obtains certificates from istiod's certificate authority (provider "istiod"). Each attempt
// opens a connection of its own and reads all files again, so changed roots, tokens and client
// certificates take effect without a restart. The Manager compares issuers with ==: after a change
// of any field it requests a new certificate.
type Istiod struct {
	Address                string       // host:port, or several of them separated by ", "
	InUse                  AddressInUse // returns the address to try first; may be nil
	ServerName             string       // expected in istiod's certificate; "": the host of Address
	Plaintext              bool         // connect without TLS
	RootFile               string       // roots of istiod's certificate; "": those of the system
	TokenFile              string       // file of a JSON Web Token; "": none
	ProvCertDir            string       // folder of the client certificate; "": none
	UseWorkloadCertificate bool         // as the client certificate if ProvCertDir is ""
	FromJoin               bool         // the token was stored by "outrider join"
	ClusterID              string
	SpiffeID               string
	KeyType                pki.KeyType
	PKCS8                  bool
	TTL                    time.Duration
}

// AddressInUse provides the address of the control plane to which the agent is connected, or "".
type AddressInUse interface{ ConfiguredAddress() string }

// addresses returns all addresses, the one in use first.
func (i Istiod) addresses() []string {
	all := strings.Split(i.Address, ", ")
	if i.InUse == nil {
		return all
	}
	if used := slices.Index(all, i.InUse.ConfiguredAddress()); used > 0 {
		all[0], all[used] = all[used], all[0]
	}
	return all
}

// String names the authority in messages.
func (i Istiod) String() string { return "istiod at " + i.Address }

// Files implements Issuer.
func (i Istiod) Files() []string {
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

// Issue implements Issuer. It tries one address after the other until one issues a certificate.
func (i Istiod) Issue(
	ctx context.Context, trusted []*x509.Certificate, current *pki.Pair,
) (*IssuedCertificate, error) {
	ctx, cancel := context.WithTimeout(ctx, issueTimeout)
	defer cancel()
	var failed error
	for _, i.Address = range i.addresses() {
		issued, err := i.issueAt(ctx, trusted, current)
		switch {
		case err == nil:
			return issued, nil
		case failed == nil:
			failed = err
		default:
			failed = fmt.Errorf("%w; the next address failed, too: %w", failed, err)
		}
	}
	return nil, failed
}

// issueAt requests a certificate from i.Address. It authenticates with a client certificate;
// without one, or after a failure, with the token if one is configured.
func (i Istiod) issueAt(
	ctx context.Context, trusted []*x509.Certificate, current *pki.Pair,
) (*IssuedCertificate, error) {
	certificate, err := i.clientCertificate(current)
	if certificate != nil {
		var issued *IssuedCertificate
		if issued, err = i.issue(ctx, trusted, certificate); err == nil {
			return issued, nil
		}
	}
	if err != nil && i.TokenFile == "" {
		return nil, err
	}
	issued, tokenErr := i.issue(ctx, trusted, nil)
	if tokenErr == nil {
		return issued, nil
	}
	if i.FromJoin && needsToken(tokenErr) {
		// "outrider join" has removed the token, so the error with the client certificate is the
		// one to report.
		if err != nil && errors.Is(tokenErr, fs.ErrNotExist) {
			if errors.Is(err, pki.ErrExpired) {
				err = fmt.Errorf(`%w; or run "outrider join" with a new token`, err)
			}
			return nil, err
		}
		tokenErr = fmt.Errorf(`%w; or run "outrider join" with a new token`, tokenErr)
	}
	if err == nil || err.Error() == tokenErr.Error() {
		return nil, tokenErr
	}
	return nil, fmt.Errorf("%w; the attempt with the client certificate failed, too: %w", tokenErr,
		err)
}

// needsToken reports whether an attempt failed because there is no valid token.
func needsToken(err error) bool {
	return errors.Is(err, pki.ErrExpired) || errors.Is(err, fs.ErrNotExist) ||
		status.Code(err) == codes.Unauthenticated
}

// issue generates a key and requests a certificate for it. It authenticates with certificate, or
// with the token if certificate is nil.
func (i Istiod) issue(
	ctx context.Context, trusted []*x509.Certificate, certificate *tls.Certificate,
) (*IssuedCertificate, error) {
	key, err := pki.GenerateKey(i.KeyType)
	if err != nil {
		return nil, err
	}
	keyPEM, err := pki.EncodeKey(key, i.PKCS8)
	if err != nil {
		return nil, err
	}
	request, err := pki.NewCertificateRequest(key, i.SpiffeID)
	if err != nil {
		return nil, err
	}
	options, err := i.dialOptions(trusted, certificate)
	if err != nil {
		return nil, err
	}
	connection, err := grpc.NewClient("dns:///"+i.Address, options...)
	if err != nil {
		return nil, fmt.Errorf("cannot connect to %s: %w", i, err)
	}
	defer func() { _ = connection.Close() }()
	ctx = metadata.AppendToOutgoingContext(ctx, "ClusterID", i.ClusterID)
	response, err := securityv1.NewIstioCertificateServiceClient(connection).CreateCertificate(ctx,
		&securityv1.IstioCertificateRequest{
			Csr: string(request), ValidityDuration: int64(i.TTL.Seconds()),
		})
	if err != nil {
		return nil, fmt.Errorf("%s issues no certificate: %w%s", i, err, i.fix(err))
	}
	return i.accept(response.GetCertChain(), keyPEM)
}

// fix returns the advice that an error message gets as its suffix, beginning with "; ", or "".
func (i Istiod) fix(err error) string {
	switch {
	case strings.Contains(err.Error(), "signed by unknown authority"):
		return "; write the root of its certificate into " +
			cmp.Or(i.RootFile, "a file that [identity] root_ca_file names")
	case status.Code(err) == codes.Unauthenticated && i.TokenFile != "":
		return "; write a token for the audience istio-ca that it accepts into " + i.TokenFile
	}
	return ""
}

// accept checks the certificates in an answer: the last element holds the roots, the others the
// chain. The chain must certify the requested identity and be issued by one of the roots.
func (i Istiod) accept(chain []string, key []byte) (*IssuedCertificate, error) {
	if len(chain) < 2 {
		return nil, fmt.Errorf("%s answered with %d elements; it must send a certificate chain "+
			"and its root", i, len(chain))
	}
	last := len(chain) - 1
	source := "answer of " + i.String()
	roots, err := pki.ParseRoots(pki.PEMInput{File: source, PEM: []byte(chain[last])}, time.Time{})
	if err != nil {
		return nil, err
	}
	pair, err := pki.ParsePair(
		pki.PEMInput{File: source, PEM: []byte(strings.Join(chain[:last], "\n"))},
		pki.PEMInput{File: "generated key", PEM: key}, pki.UsageBoth)
	if err != nil {
		return nil, err
	}
	if got := pair.SpiffeID(); got != i.SpiffeID {
		return nil, fmt.Errorf("%s certifies %q, not %s; correct [node] trust_domain, namespace and "+
			"service_account, or the token", i, got, i.SpiffeID)
	}
	if !pair.IssuedBy(roots) {
		return nil, fmt.Errorf("%s answered with a chain that none of its roots issued", i)
	}
	return &IssuedCertificate{Pair: pair, Roots: roots, Obtained: time.Now(),
		Source: FromIstiod}, nil
}
