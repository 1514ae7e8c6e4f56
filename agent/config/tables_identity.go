package config

import "time"

func identityTable(i *Identity) table {
	return table{name: "identity", keys: []key{
		setting("provider", &i.Provider, "none", Epoch, "none | files | istiod | spire").
			plays("CA_PROVIDER, FILE_MOUNTED_CERTS").
			must(oneOf("none", "files", "istiod", "spire")),
		setting("cert_file", &i.CertFile, "", Live, "files").file(),
		setting("key_file", &i.KeyFile, "", Live, "files").file(),
		setting("root_ca_file", &i.RootCAFile, "", Live, "files; istiod: CA's root").
			plays("CA_ROOT_CA").file(),
		setting("credentials_dir", &i.CredentialsDir, "/etc/outrider/credentials", Live,
			"certificates of credentialName: NAME/tls.crt, tls.key, ca.crt; any provider").
			path().must(notEmpty),
		setting("credentials_sds", &i.CredentialsSDS, "", Epoch,
			"Unix socket of an SDS server of this host for credentialName: sds://NAME; in Istio "+
				"/var/run/secrets/credential-uds/socket").path(),
		setting("restart_on_change", &i.RestartOnChange, false, Live,
			"hot-restart on a certificate change instead of pushing it over SDS (for a custom bootstrap "+
				"that reads files)").
			plays("watcher of pilot-agent 1.5"),
		duration("wait", &i.CertificateWait, "2m", Start,
			"files: how long to wait for them before Envoy starts; then it starts without, and says so").
			must(atLeast(0)),
		setting("ca_address", &i.CAAddress, "", Epoch, `istiod; "" = discovery.address`).
			plays("CA_ADDR").must(optional(dialAddress)),
		setting("token_file", &i.TokenFile, "", Live,
			"istiod: JWT sent to the CA (file or credential:NAME)").
			file(),
		setting("prov_cert_dir", &i.ProvCertDir, "", Live,
			"istiod: cert-chain.pem, key.pem for mTLS to the CA").
			plays("PROV_CERT").path(),
		setting("persist", &i.Persist, "auto", Live,
			`keep the last issued certificate over a reboot, sealed with the credential "seal" (made by `+
				`systemd-creds when the package is installed); auto: if there is one | off`).
			must(oneOf("auto", "off")),
		setting("output_dir", &i.OutputDir, "", Live,
			"write key.pem, cert-chain.pem, root-cert.pem").
			plays("OUTPUT_CERTS").path(),
		setting("key_type", &i.KeyType, "ecdsa-p256", Live,
			"ecdsa-p256 | ecdsa-p384 | rsa-2048 | rsa-3072 | rsa-4096").
			plays("ECC_SIGNATURE_ALGORITHM").
			must(oneOf("ecdsa-p256", "ecdsa-p384", "rsa-2048", "rsa-3072", "rsa-4096")),
		setting("pkcs8", &i.PKCS8, false, Live, "").
			plays("PKCS8_KEY"),
		duration("ttl", &i.TTL, "24h", Live, "validity asked for").
			plays("SECRET_TTL").must(atLeast(10 * time.Second)),
		setting("grace_ratio", &i.GraceRatio, 0.5, Live,
			"renew when this share of the lifetime is left").
			plays("SECRET_GRACE_PERIOD_RATIO").must(between(0.0, 1.0)),
		setting("grace_jitter", &i.GraceJitter, 0.01, Live, "spread of grace_ratio over a fleet").
			must(between(0.0, 1.0)),
		setting("spire_socket", &i.SpireSocket, "/run/spire/agent/public/api.sock", Epoch,
			"spire: Envoy's SDS goes to it").
			path().must(notEmpty),
	}}
}
