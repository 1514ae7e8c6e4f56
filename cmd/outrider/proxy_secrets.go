package main

import (
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/identity/pki"
	"outrider.org/outrider/agent/resource"
)

// secret has the printed fields of a secret in Envoy's configuration dump, which omits private
// keys.
type secret struct {
	Name    string `json:"name"`
	Version string `json:"version_info"`
	Secret  struct {
		Certificate *struct {
			Chain dataSource `json:"certificate_chain"`
		} `json:"tls_certificate"`
		Validation *struct {
			CA dataSource `json:"trusted_ca"`
		} `json:"validation_context"`
	} `json:"secret"`
}

// dataSource is envoy.config.core.v3.DataSource. Envoy may have redacted its content.
type dataSource struct {
	Bytes string `json:"inline_bytes"` // base64
	Text  string `json:"inline_string"`
	File  string `json:"filename"`
}

type secretsDump struct {
	Static  []secret `json:"static_secrets"`
	Active  []secret `json:"dynamic_active_secrets"`
	Warming []secret `json:"dynamic_warming_secrets"`
}

func (a *app) showSecrets(ctx context.Context, client *api.Client, _ []string) error {
	var dumped secretsDump
	from, printed, err := a.decodeDump(ctx, client, "SecretsConfigDump", &dumped,
		resource.SecretType)
	if printed || err != nil {
		return err
	}
	t := &table{
		head: []string{"SECRET", "TYPE", "SOURCE", "VERSION", "STATE", "SUBJECT", "VALID UNTIL",
			"FROM"},
		wide: []string{"SOURCE", "VERSION", "FROM"},
	}
	add := func(secrets []secret, source, state string) {
		for _, s := range secrets {
			kind, subject, until := s.describe(a.now())
			t.add(s.Name, kind, source, a.short(s.Version), cell{state, stateWord(state)}, subject,
				until, from.cell(resource.SecretType, s.Name))
		}
	}
	add(dumped.Static, "static", "active")
	add(dumped.Active, "sds", "active")
	add(dumped.Warming, "sds", "warming")
	t.sortBy(0)
	a.write(t, "no secret")
	return a.explainWarming(ctx, client, dumped.Warming)
}

// explainWarming prints why secrets are warming.
func (a *app) explainWarming(ctx context.Context, client *api.Client, warming []secret) error {
	if len(warming) == 0 {
		return nil
	}
	status, err := client.Status(ctx)
	if err != nil {
		return err
	}
	for _, s := range warming {
		why := "see \"outrider mesh check\" and \"outrider status\""
		for _, identity := range status.Identities {
			if identity.Name == s.Name && identity.Problem != "" {
				why = identity.Problem
			}
		}
		fmt.Fprintf(a.out, "%s is warming: %s\n", s.Name, why)
	}
	fmt.Fprintln(a.out, "A listener or cluster that had a secret serves its former version meanwhile.")
	return nil
}

// describe returns the kind of a secret, the subject of its certificate, and the expiry.
func (s secret) describe(now time.Time) (kind, subject string, until cell) {
	kind = "-" // Envoy has not received it yet
	var data dataSource
	switch {
	case s.Secret.Certificate != nil:
		kind, data = "certificate", s.Secret.Certificate.Chain
	case s.Secret.Validation != nil:
		kind, data = "roots", s.Secret.Validation.CA
	}
	certificate := firstCertificate(data)
	if certificate == nil {
		return kind, data.File, cell{}
	}
	subject = certificate.Subject.String()
	if len(certificate.URIs) > 0 {
		subject = certificate.URIs[0].String()
	}
	until = cell{certificate.NotAfter.UTC().Format("2006-01-02 15:04:05Z"), green}
	switch left := certificate.NotAfter.Sub(now); {
	case left <= 0:
		until = cell{until.text + " EXPIRED", red}
	case pki.EndsSoon(certificate.NotBefore, certificate.NotAfter, now):
		until = cell{until.text + " in " + age(left), yellow}
	}
	return kind, subject, until
}

func firstCertificate(data dataSource) *x509.Certificate {
	content, err := base64.StdEncoding.DecodeString(data.Bytes)
	if err != nil || len(content) == 0 {
		content = []byte(data.Text)
	}
	block, _ := pem.Decode(content)
	if block == nil {
		return nil
	}
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil
	}
	return certificate
}
