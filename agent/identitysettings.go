package agent

import (
	"cmp"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/identity"
	"outrider.org/outrider/agent/identity/pki"
	"outrider.org/outrider/agent/relay"
)

// sealCredential is the systemd credential that [identity] persist uses.
const sealCredential = "seal"

// Files in the state directory: the sealed certificate, and the last roots of SPIFFE bundles.
const (
	sealedName  = "certificate.sealed"
	bundlesName = "spiffe-bundles.json"
)

// readSeal returns the credential that certificates are sealed with, nil if there is none.
func readSeal(b *base, c *config.Config) []byte {
	var seal []byte
	err := errors.New("systemd passes no credentials")
	if folder := b.options.environment()("CREDENTIALS_DIRECTORY"); folder != "" {
		seal, err = os.ReadFile(filepath.Join(folder, sealCredential))
	}
	if err != nil && c.Identity.Provider == "istiod" && c.Identity.Persist != "off" {
		b.logOf("identity").Warn(
			"certificates are not stored across reboots: no key to encrypt them", "error", err)
	}
	return seal
}

// identitySettings returns the settings of the identity manager in a configuration.
func identitySettings(
	c *config.Config, seal []byte, inUse *relay.AddressInUse, log *slog.Logger,
) identity.Settings {
	settings := identity.Settings{Identity: c.Identity}
	// If only the credential is missing, the file remains: the next boot may have the credential.
	if settings.Provider != "istiod" || settings.Persist == "off" {
		settings.StaleStoreFile = filepath.Join(c.Paths.StateDir, sealedName)
	}
	if settings.Provider == "istiod" {
		issuer := istiod(c, inUse)
		settings.Issuer, settings.Sealed = issuer, sealed(c, issuer, seal, log)
	}
	return settings
}

// istiod returns the certificate authority of provider "istiod". inUse returns the address of the
// control plane to which the agent is connected.
func istiod(c *config.Config, inUse *relay.AddressInUse) identity.Istiod {
	i, n := c.Identity, c.Node
	issuer := identity.Istiod{
		Address: i.CAAddress, RootFile: i.RootCAFile, TokenFile: i.TokenFile,
		ProvCertDir: i.ProvCertDir, UseWorkloadCertificate: c.Discovery.Auth == "mtls", ClusterID: n.ClusterID,
		FromJoin: config.IsJoinToken(i.TokenFile),
		SpiffeID: pki.SpiffeID(n.TrustDomain, n.Namespace, n.ServiceAccount),
		KeyType:  pki.KeyType(i.KeyType), PKCS8: i.PKCS8, TTL: i.TTL,
	}
	issuer.Plaintext = config.IsPlaintextCA(issuer.Address)
	if issuer.Address == "" { // the control plane is also the certificate authority
		issuer.Address = strings.Join(c.Discovery.Addresses, ", ")
		issuer.InUse, issuer.ServerName = inUse, c.Discovery.ServerName
		issuer.RootFile = cmp.Or(i.RootCAFile, c.Discovery.RootCAFile)
		issuer.Plaintext = !c.Discovery.UsesTLS()
	}
	return issuer
}

// sealed returns the encrypted store of the certificate, nil if it is not stored across reboots.
func sealed(
	c *config.Config, issuer identity.Istiod, seal []byte, log *slog.Logger,
) *identity.SealedStore {
	if c.Identity.Persist == "off" || seal == nil {
		return nil
	}
	store, err := identity.NewSealedStore(filepath.Join(c.Paths.StateDir, sealedName),
		issuer.SpiffeID+" from "+issuer.Address, seal)
	if err != nil {
		log.Warn("cannot store certificate across reboots", "error", err)
		return nil
	}
	return store
}
