package main

import (
	"cmp"
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"slices"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/resource"
)

// secret is what the table needs of a secret in the dump (Envoy has removed the keys).
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

// dataSource is envoy.config.core.v3.DataSource. Its content may be redacted.
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
	from, printed, err := a.decodeDump(ctx, client, "SecretsConfigDump", &dumped, resource.SecretType)
	if printed || err != nil {
		return err
	}
	t := &table{head: []string{"SECRET", "TYPE", "SOURCE", "VERSION", "STATE", "SUBJECT", "VALID UNTIL", "FROM"}, wide: []string{"SOURCE", "VERSION", "FROM"}}
	for _, s := range dumped.Static {
		t.add(append(a.secretRow(s, "static", "active"), from.cell(resource.SecretType, s.Name))...)
	}
	for _, s := range dumped.Active {
		t.add(append(a.secretRow(s, "sds", "active"), from.cell(resource.SecretType, s.Name))...)
	}
	for _, s := range dumped.Warming {
		t.add(append(a.secretRow(s, "sds", "warming"), from.cell(resource.SecretType, s.Name))...)
	}
	slices.SortStableFunc(t.rows, func(x, y []cell) int { return cmp.Compare(x[0].text, y[0].text) })
	a.write(t, "no secret")
	return nil
}

func (a *app) secretRow(s secret, source, state string) []cell {
	kind, subject, until := "other", "-", text("-")
	var data dataSource
	switch {
	case s.Secret.Certificate != nil:
		kind, data = "certificate", s.Secret.Certificate.Chain
	case s.Secret.Validation != nil:
		kind, data = "roots", s.Secret.Validation.CA
	}
	if certificate := firstCertificate(data); certificate != nil {
		subject = certificate.Subject.String()
		if len(certificate.URIs) > 0 {
			subject = certificate.URIs[0].String()
		}
		until = cell{certificate.NotAfter.UTC().Format("2006-01-02 15:04:05Z"), green}
		if certificate.NotAfter.Before(a.now()) {
			until.style = red
		}
	} else if data.File != "" {
		subject = data.File
	}
	return []cell{text("%s", s.Name), text("%s", kind), text("%s", source), text("%s", a.short(s.Version)),
		{state, stateWord(state)}, text("%s", orDash(subject)), until}
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
