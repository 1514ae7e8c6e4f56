package envoy

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/url"
	"regexp"
	"slices"
)

// Certificates returns the certificates of one secret that Envoy received over SDS: a chain, or
// trusted roots. It returns nil if Envoy has none.
func (a *Admin) Certificates(ctx context.Context, secret string) ([]*x509.Certificate, error) {
	found, err := a.SecretsMatching(ctx, regexp.QuoteMeta(secret))
	return found[secret], err
}

// SecretsMatching returns, by name, the certificates of the secrets that Envoy received over SDS.
// It selects the secrets whose whole name matches an expression (RE2).
func (a *Admin) SecretsMatching(
	ctx context.Context, expression string,
) (map[string][]*x509.Certificate, error) {
	body, err := a.Get(ctx, "/config_dump?"+url.Values{
		"resource": {"dynamic_active_secrets"}, "name_regex": {expression},
	}.Encode())
	if err != nil {
		return nil, err
	}
	return certificatesOf(body)
}

// certificatesOf returns the certificates in a config dump of secrets, by name.
func certificatesOf(dump []byte) (map[string][]*x509.Certificate, error) {
	type source struct {
		Bytes []byte `json:"inline_bytes"`
		Text  string `json:"inline_string"`
	}
	var dumped struct {
		Configs []struct {
			Name   string `json:"name"`
			Secret struct {
				Certificate struct {
					Chain source `json:"certificate_chain"`
				} `json:"tls_certificate"`
				Validation struct {
					Roots  source   `json:"trusted_ca"`
					Custom struct { // SPIFFECertValidatorConfig, in which SPIRE sends trusted roots
						Config struct {
							Domains []struct {
								Bundle source `json:"trust_bundle"`
							} `json:"trust_domains"`
						} `json:"typed_config"`
					} `json:"custom_validator_config"`
				} `json:"validation_context"`
			} `json:"secret"`
		} `json:"configs"`
	}
	if err := json.Unmarshal(dump, &dumped); err != nil {
		return nil, fmt.Errorf("decode the dump of Envoy's secrets: %w", err)
	}
	all := map[string][]*x509.Certificate{}
	for _, config := range dumped.Configs {
		secret := config.Secret
		parts := []source{secret.Certificate.Chain, secret.Validation.Roots}
		for _, domain := range secret.Validation.Custom.Config.Domains {
			parts = append(parts, domain.Bundle)
		}
		for _, part := range parts {
			rest := slices.Concat(part.Bytes, []byte(part.Text))
			for block, after := pem.Decode(rest); block != nil; block, after = pem.Decode(after) {
				certificate, err := x509.ParseCertificate(block.Bytes)
				if err != nil {
					return nil, fmt.Errorf("parse a certificate in the dump of Envoy's secrets: %w",
						err)
				}
				all[config.Name] = append(all[config.Name], certificate)
			}
		}
	}
	return all, nil
}
